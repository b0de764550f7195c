#include "launch/process/memfd.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <string>
#include <string_view>

// The program is assembled in, so it needs no installed file and no search path.
asm(".section .rodata\n"
    ".balign 16\n"
    "lockstep_supervisor_begin:\n"
    ".incbin \"" LOCKSTEP_SUPERVISOR_PROGRAM
    "\"\n"
    "lockstep_supervisor_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" {
extern const char lockstep_supervisor_begin[] __attribute__((visibility("hidden")));
extern const char lockstep_supervisor_end[] __attribute__((visibility("hidden")));
}

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace lockstep::launch {

Status write_memfd(int fd, std::string_view bytes, std::string_view purpose) {
  const std::string what = fmt::format("cannot write {} bytes to memory for {}", bytes.size(), purpose);
  // Beyond the limit SIGXFSZ would end this process if it were not blocked. A blocked one must be taken before it
  // counts.
  sigset_t limit;
  sigset_t before;
  sigemptyset(&limit);
  sigaddset(&limit, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &limit, &before);
  int error = 0;
  while (error == 0 && !bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) error = errno;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  const timespec at_once{};
  if (error == EFBIG) sigtimedwait(&limit, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error == 0 ? Status() : Status::from_errno(what, error);
}

Result<Fd> supervisor_image() {
  // Kernels before 6.3 do not know MFD_EXEC. There every memfd may be executed.
  Fd image(memfd_create("lockstep-supervisor", MFD_CLOEXEC | MFD_EXEC));
  if (!image.valid() && errno == EINVAL) image.reset(memfd_create("lockstep-supervisor", MFD_CLOEXEC));
  if (!image.valid()) {
    return Status::from_errno(
        "cannot make a file in memory for the process that supervises the ranks (when permission is denied, the "
        "system's setting vm.memfd_noexec is 2; Lockstep needs 0 or 1)",
        errno);
  }
  const std::string_view program(lockstep_supervisor_begin, lockstep_supervisor_end);
  LOCKSTEP_RETURN_IF_ERROR(write_memfd(image.get(), program, "the program of the process that supervises the ranks"));
  return image;
}

}  // namespace lockstep::launch
