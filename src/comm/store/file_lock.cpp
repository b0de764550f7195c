#include "comm/store/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <thread>

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

Status lock(int fd, LockByte byte, LockMode mode, const std::string& path, Deadline deadline) {
  // A blocking fcntl has no deadline, and a stopped process could hold the lock for ever.
  auto pause = std::chrono::microseconds(20);
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool locked, try_lock(fd, byte, mode, path));
    if (locked) return {};
    if (deadline.expired()) {
      return {ErrorCode::kTimeout, fmt::format("store file {} stayed locked by another process; is one of the ranks "
                                               "stopped or its file server away?",
                                               path)};
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(2000));
  }
}

void unlock(int fd, LockByte byte) {
  set_lock(fd, byte, F_UNLCK);
}

Result<FileLock> FileLock::acquire(int fd, LockMode mode, const std::string& path) {
  LOCKSTEP_RETURN_IF_ERROR(lock(fd, LockByte::kData, mode, path, Deadline::after(std::chrono::minutes(1))));
  return FileLock(fd);
}

}  // namespace lockstep::comm
