// What a group and the works it has handed out share: works may outlive the group.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/collective/communicator.h"

namespace lockstep {

class FutureCompleter;

class GroupCore {
 public:
  // `profiled_as` stands before operations' names in profiles: "lockstep" gives "lockstep:all_reduce".
  GroupCore(std::shared_ptr<comm::Communicator> communicator, std::string who, std::string profiled_as);
  ~GroupCore();

  // "rank 1, group 'world'"
  const std::string& who() const { return who_; }
  const std::string& profiled_as() const { return profiled_as_; }

  int world_size() const { return world_size_; }

  // Null once the group was left.
  std::shared_ptr<comm::Communicator> communicator() const LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return communicator_;
  }

  // Made at the first call; null once the group was left.
  std::shared_ptr<FutureCompleter> completer() LOCKSTEP_EXCLUDES(mutex_);

  void leave() LOCKSTEP_EXCLUDES(mutex_);

 private:
  const std::string who_;
  const std::string profiled_as_;
  const int world_size_;
  mutable Mutex mutex_;
  std::shared_ptr<comm::Communicator> communicator_ LOCKSTEP_GUARDED_BY(mutex_);
  std::shared_ptr<FutureCompleter> completer_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
