#include "memory_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace lockstep::comm {

Result<Fd> make_memory_file(const char* name, std::size_t bytes) {
  // A container may allow only files in memory that can never be executed (vm.memfd_noexec=2). Kernels before 6.3 do
  // not know this flag.
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!fd.valid() && errno == EINVAL) fd.reset(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Status::from_errno("cannot create shared memory (memfd_create)", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Status::from_errno(
        fmt::format("cannot reserve {} bytes of shared memory; is a file size limit set (ulimit -f)?", bytes), errno);
  }
  // F_SEAL_SEAL: no further seals, because one against writing would do as much harm.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    return Status::from_errno("cannot seal shared memory", errno);
  return fd;
}

Result<struct stat> check_memory_file(int fd, std::size_t bytes) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return Status::from_errno("fstat of a rank's shared memory", errno);
  const int seals = fcntl(fd, F_GET_SEALS);
  const int mode = fcntl(fd, F_GETFL);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || mode < 0 || (mode & O_ACCMODE) != O_RDWR) {
    return Status(ErrorCode::kCorrupt,
                  "what was handed over is no shared memory of Lockstep (a memfd that cannot be made smaller)");
  }
  if (static_cast<std::uint64_t>(info.st_size) < bytes) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("a rank's shared memory has {} bytes, it announced {}", info.st_size, bytes));
  }
  return info;
}

}  // namespace lockstep::comm
