#include "launch/process/supervisor_image.h"

#include <sys/mman.h>

#include <cerrno>
#include <string_view>

#include "launch/process/memfd.h"

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
  const std::string_view program(lockstep_supervisor_begin, lockstep_supervisor_end);
  LOCKSTEP_RETURN_IF_ERROR(write_memfd(image.get(), program, "the program of the process that supervises the ranks"));
  return image;
}

}  // namespace lockstep::launch
