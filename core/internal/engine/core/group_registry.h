// Progress across groups. Operations progress only while their rank is inside a call. A correct program may start
// operations in one group and wait in another. Therefore a wait that has spun for a while also progresses the other
// groups of its process, and sleeps only briefly while they have operations under way.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"

namespace lockstep::comm {

class Group;
struct Failure;

// The groups of this process. Thread-safe. It never waits for a group's lock: that group may be waiting for this
// registry's lock.
class GroupRegistry {
 public:
  static GroupRegistry& of_process();

  void add(const std::shared_ptr<Group>& group) LOCKSTEP_EXCLUDES(mutex_);
  // Every group that was added must be removed before it is destroyed.
  void remove(const Group& group) LOCKSTEP_EXCLUDES(mutex_);

  struct Others {
    bool moved = false;
    bool busy = false;  // some of them have started operations that are not over
  };
  // Progresses the other groups that are busy and, in turn, some idle ones: messages may have arrived for them. With
  // only one group this costs one load. The caller must hold no group's lock.
  Others progress_others(const Group& group) LOCKSTEP_EXCLUDES(mutex_);

  // If `group` is broken, tells the other groups why, once. It must be called before the caller of an operation learns
  // of the failure: then the other groups know the cause whatever that caller does. The caller must hold no group's
  // lock.
  void tell_other_groups(Group& group) LOCKSTEP_EXCLUDES(mutex_);
  // Tells every group except `from`; null: all groups.
  void tell(const Failure& failure, const Group* from) LOCKSTEP_EXCLUDES(mutex_);

  // Shows `what` in the other groups of the rank that waits in `group`, with `in_itself` in this group too, until the
  // result ends. Takes no lock of a group.
  std::shared_ptr<const void> show_wait(const Group& group, bool in_itself, const std::string& what)
      LOCKSTEP_EXCLUDES(mutex_);

  // Whether a group that this process has not left is broken. The caller must hold no group's lock.
  bool any_broken() LOCKSTEP_EXCLUDES(mutex_);

 private:
  struct Entry {
    const Group* address;  // valid: groups are removed before they are destroyed
    std::weak_ptr<Group> group;
  };
  using Clock = std::chrono::steady_clock;

  std::vector<std::shared_ptr<Group>> all_but(const Group* group) LOCKSTEP_EXCLUDES(mutex_);

  std::atomic<std::size_t> count_{0};
  Mutex mutex_;
  std::vector<Entry> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  Clock::time_point last_idle_turn_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t next_turn_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // the idle group that is next
};

}  // namespace lockstep::comm
