// Progress across groups. Operations move only while their rank is inside a call, and a correct program may start some
// in one group and wait in another. Therefore a wait that has spun for a while also progresses the other groups of its
// process, and sleeps only briefly while they have operations under way.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "group.h"
#include "lockstep/base/mutex.h"

namespace lockstep::comm {

// The groups of this process. Thread-safe; never waits for a group, as that may be waiting here.
class GroupRegistry {
 public:
  static GroupRegistry& of_process();

  void add(const std::shared_ptr<Group>& group) LOCKSTEP_EXCLUDES(mutex_);
  // Every group that was added must be removed before it goes.
  void remove(const Group& group) LOCKSTEP_EXCLUDES(mutex_);

  struct Others {
    bool moved = false;
    bool busy = false;  // some have started operations that are not over
  };
  // Progresses the other groups that are busy and, in turn, some that are not: messages may have arrived for them. With
  // only one group it costs one load. The caller holds no group's lock.
  Others progress_others(const Group& group) LOCKSTEP_EXCLUDES(mutex_);

  // If `group` is broken, tells the others why, once. It is called before the caller of an operation learns of the
  // failure: whatever that caller does next, the other groups know the cause. The caller holds no group's lock.
  void tell_others(Group& group) LOCKSTEP_EXCLUDES(mutex_);
  // Tells every group but `from` (or all).
  void tell(const Failure& failure, const Group* from) LOCKSTEP_EXCLUDES(mutex_);

 private:
  struct Entry {
    const Group* address;  // valid: groups are removed before they go
    std::weak_ptr<Group> group;
  };
  using Clock = std::chrono::steady_clock;

  std::atomic<std::size_t> count_{0};
  Mutex mutex_;
  std::vector<Entry> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  Clock::time_point last_idle_turn_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t next_turn_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of idle groups
};

}  // namespace lockstep::comm
