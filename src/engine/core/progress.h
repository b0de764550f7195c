// Progress across groups. Operations move only while their rank is inside a call, and correct programs start some in
// one group and wait in another. So a wait, once it has spun, also moves what is under way in the other groups of its
// process, and does not sleep for long while they have something started.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "failure.h"
#include "lockstep/base/mutex.h"

namespace lockstep::comm {

// A group, as waits of other groups see it.
class Drivable {
 public:
  virtual ~Drivable() = default;

  // It has started operations that are not over.
  bool busy() const { return busy_.load(std::memory_order_relaxed); }
  // Moves what can be moved without waiting, and takes in what others have sent; nothing while another thread is inside
  // the group. Whether anything moved.
  virtual bool nudge() = 0;

  // Why it broke; a status that is ok while it works.
  virtual Failure failure() const = 0;
  // Another group of this process broke. Breaks this one too if one of its members died of it, and leaves word for the
  // others in any case.
  virtual void hear(const Failure& failure) = 0;
  // The first time: true.
  bool begin_telling() { return !told_.exchange(true, std::memory_order_relaxed); }

 protected:
  void set_busy(bool busy) { busy_.store(busy, std::memory_order_relaxed); }

 private:
  std::atomic<bool> busy_{false};
  std::atomic<bool> told_{false};
};

// The groups of this process. Thread-safe; never waits for a group, as that may be waiting here.
class GroupRegistry {
 public:
  static GroupRegistry& of_process();

  void add(const std::shared_ptr<Drivable>& group) LOCKSTEP_EXCLUDES(mutex_);
  // Every group that was added must be removed before it goes.
  void remove(const Drivable& group) LOCKSTEP_EXCLUDES(mutex_);

  struct Others {
    bool moved = false;
    bool busy = false;  // some have started operations that are not over
  };
  // Nudges the others that are busy and, in turn, some that are not: they may have been sent something. Costs one load
  // where there is one group. The caller holds no group's lock.
  Others move_others(const Drivable& group) LOCKSTEP_EXCLUDES(mutex_);

  // If `group` is broken, tells the others why, once. Called before a caller learns of it: whatever the caller does
  // next, it has left word. The caller holds no group's lock.
  void tell_others(Drivable& group) LOCKSTEP_EXCLUDES(mutex_);
  // Tells every group but `from` (or all).
  void tell(const Failure& failure, const Drivable* from) LOCKSTEP_EXCLUDES(mutex_);

 private:
  struct Entry {
    const Drivable* address;  // valid: groups are removed before they go
    std::weak_ptr<Drivable> group;
  };
  using Clock = std::chrono::steady_clock;

  std::atomic<std::size_t> count_{0};
  Mutex mutex_;
  std::vector<Entry> groups_ LOCKSTEP_GUARDED_BY(mutex_);
  Clock::time_point last_idle_turn_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t next_turn_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of idle groups
};

}  // namespace lockstep::comm
