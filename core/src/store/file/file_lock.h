// Open-file-description locks on single bytes far behind a file's data. Unlike classic fcntl locks they belong to the
// open file and not to the process, so they also separate two stores of one process.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::comm {

enum class LockByte : long long {
  kData = 1LL << 62,            // held while the log is used: shared to read, exclusive to write
  kPresence = (1LL << 62) + 1,  // held shared as long as a store has the file open
};

enum class LockMode : short { kShared, kExclusive };

// False when another open file holds a lock that conflicts.
Result<bool> try_lock(int fd, LockByte byte, LockMode mode, const std::string& path);
void unlock(int fd, LockByte byte);

// The lock of the data; the destructor unlocks.
class FileLock {
 public:
  // Nothing when another open file holds a lock that conflicts.
  static Result<std::optional<FileLock>> try_acquire(int fd, LockMode mode, const std::string& path);
  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock() {
    if (fd_ >= 0) unlock(fd_, LockByte::kData);
  }

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace lockstep::comm
