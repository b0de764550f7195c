// One program at a time writes to a folder of checkpoints: two trainings would remove each other's.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <utility>

#include "lockstep/base/fd.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"

namespace lockstep::checkpoint {

// The place of a save in the order of all saves of this process to one folder. The save has ended when its turn is
// destroyed.
class SaveTurn {
 public:
  using Folder = std::pair<dev_t, ino_t>;  // which has one of these, and may have several names

  SaveTurn(std::shared_future<void> before, Folder folder) : before_(std::move(before)), folder_(folder) {}
  ~SaveTurn() { ended_.set_value(); }
  SaveTurn(const SaveTurn&) = delete;
  SaveTurn& operator=(const SaveTurn&) = delete;

  // Blocks until all saves that have begun earlier have ended.
  void wait() const {
    if (before_.valid()) before_.wait();
  }
  // Whether the folder at this path is the one that was locked when the save began. True while a file server does not
  // answer.
  bool is_in(const std::filesystem::path& folder) const;

 private:
  friend class WriterLock;

  const std::shared_future<void> before_;
  const Folder folder_;
  std::promise<void> ended_;
};

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

  // Whether this is the lock of the folder at this path; managers that share a lock may have different paths to its
  // folder. False in forks of the process that took it, and when the folder or the file has been removed or replaced.
  // True while a file server does not answer.
  bool is_held(const std::filesystem::path& folder) const;

  // Begins a save. Several managers of this process may save to one folder: without an order they would remove each
  // other's temporary files, and set aside each other's checkpoints.
  std::shared_ptr<const SaveTurn> next_turn();

 private:
  WriterLock(std::filesystem::path path, SaveTurn::Folder folder, Fd fd)
      : path_(std::move(path)), folder_(folder), fd_(std::move(fd)) {}

  const std::filesystem::path path_;
  const SaveTurn::Folder folder_;
  Fd fd_;
  const Origin origin_;
};

}  // namespace lockstep::checkpoint
