#include "launch/supervisor_image.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

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
  const char* cursor = lockstep_supervisor_begin;
  while (cursor < lockstep_supervisor_end) {
    const ssize_t written = write(image.get(), cursor, static_cast<std::size_t>(lockstep_supervisor_end - cursor));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      return Status::from_errno("cannot write the program of the process that supervises the ranks to memory", errno);
    cursor += written;
  }
  return image;
}

}  // namespace lockstep::launch
