// One program at a time writes to a folder of checkpoints: two trainings would remove each other's.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

#include "lockstep/base/fd.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"

namespace lockstep::checkpoint {

// A lock on the file `.writer` in the folder, which also says who holds it. The kernel takes it from a process that
// ends, however it ends; an orderly end removes the file. A fork does not have the lock of its parent.
class WriterLock {
 public:
  // How long to wait for a process of another machine. A file server keeps the lock of a machine that has died for some
  // time (NFS: 90 seconds), and the job that was there may already start again here.
  static constexpr std::chrono::seconds kPatience{120};

  // All callers of this process share the lock of a folder. kUnavailable, with the holder, if another process has it.
  // Without effect, but with a warning, on file systems without locks.
  static Result<std::shared_ptr<WriterLock>> take(const std::filesystem::path& folder,
                                                  std::chrono::milliseconds patience = kPatience);
  ~WriterLock();
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

  // False in forks of the process that took it.
  bool is_this_process() const { return origin_.is_this_process(); }

 private:
  WriterLock(std::filesystem::path path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  const std::filesystem::path path_;
  Fd fd_;
  const Origin origin_;
};

}  // namespace lockstep::checkpoint
