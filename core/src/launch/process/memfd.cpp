#include "launch/process/memfd.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
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
namespace {

// Returns errno; 0 when all is written.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

bool fits_the_limit(std::size_t size) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || size <= limit.rlim_cur;
}

void raise_limit() {
  const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
  rlimit limit{};
  if (setrlimit(RLIMIT_FSIZE, &none) == 0 || getrlimit(RLIMIT_FSIZE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_FSIZE, &limit);
}

// A child raises its own limit and writes: this process and its workers keep theirs. The child shares this process's
// memory (vfork), so it makes system calls only.
__attribute__((noinline)) int write_with_raised_limit(int fd, std::string_view bytes) {
  // Blocked signals include SIGXFSZ, which would end the child.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = vfork();
  if (pid == 0) {
    // NOLINTNEXTLINE(clang-analyzer-unix.Vfork): the child makes system calls only, here and in write_all()
    raise_limit();
    _exit(write_all(fd, bytes));  // no errno is above 255
  }
  int error = errno;
  int status = 0;
  if (pid > 0) error = waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

}  // namespace

Status write_memfd(int fd, std::string_view bytes, std::string_view purpose) {
  const int error = fits_the_limit(bytes.size()) ? write_all(fd, bytes) : write_with_raised_limit(fd, bytes);
  if (error == 0) return {};
  return Status::from_errno(fmt::format("cannot write {} bytes to memory for {}", bytes.size(), purpose), error);
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
