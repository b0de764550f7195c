#include "store/file/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>

namespace lockstep::comm {
namespace {

int set_lock(int fd, LockByte byte, short type) {
  struct flock request {};
  request.l_type = type;
  request.l_whence = SEEK_SET;
  request.l_start = static_cast<off_t>(byte);
  request.l_len = 1;
  int result = 0;
  do {
    result = ::fcntl(fd, F_OFD_SETLK, &request);
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

Result<bool> try_lock(int fd, LockByte byte, LockMode mode, const std::string& path) {
  if (set_lock(fd, byte, mode == LockMode::kShared ? F_RDLCK : F_WRLCK) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  return Status::from_errno(fmt::format("cannot lock store file {} (does its file system support fcntl locks?)", path),
                            errno);
}

void unlock(int fd, LockByte byte) {
  set_lock(fd, byte, F_UNLCK);
}

Result<std::optional<FileLock>> FileLock::try_acquire(int fd, LockMode mode, const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool locked, try_lock(fd, LockByte::kData, mode, path));
  return locked ? std::optional(FileLock(fd)) : std::nullopt;
}

}  // namespace lockstep::comm
