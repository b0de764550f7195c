// Times that both engines keep to.
//
// Their waits are two loops with times of their own. The ranks of one machine wait on a futex in shared memory
// (local/waiting.h): the awaited rank wakes the sleeper, so a sleep may last until the next check. A group of several
// machines must progress its transport (hierarchical/hierarchical_group.cpp): it sleeps on the transport's descriptor,
// which ranks of its own machine do not wake, so it sleeps only briefly.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/core/group.h"
#include "engine/core/group_registry.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"

namespace lockstep::comm {

// How often a wait, or a caller that only tests, looks for deaths and for its deadline.
inline constexpr auto kCheckEvery = std::chrono::milliseconds(5);

// A dead rank may hold a ticket that nobody else can finish. After this time without progress it is taken to hold one.
inline constexpr auto kDeadTicket = std::chrono::milliseconds(500);

// DrainTimeout: how long a rank that leaves a group, or has seen it break, waits for what others have under way.
//
// A rank that is frozen in one group is frozen in the next group too. Therefore each wait in vain halves the time of
// the waits that soon follow it. A process that leaves many groups with a frozen rank, or with a machine that is gone,
// waits at most twice the first time altogether.
class DrainTimeout {
 public:
  explicit DrainTimeout(std::chrono::microseconds longest = std::chrono::milliseconds(200))
      : deadline_(Deadline::after(longest / (1 << History::of_process().in_vain()))) {}
  ~DrainTimeout() {
    if (waits_ && deadline_.expired()) History::of_process().add();
  }
  DrainTimeout(const DrainTimeout&) = delete;
  DrainTimeout& operator=(const DrainTimeout&) = delete;

  // Call these only if there is something to wait for: whether the caller may still wait, and for how long.
  bool may_wait() { return remaining() > std::chrono::milliseconds(0); }
  std::chrono::milliseconds remaining() {
    waits_ = true;
    return deadline_.remaining_ms();
  }

 private:
  // The recent waits in vain of this process.
  class History {
   public:
    static History& of_process() {
      static History history;
      return history;
    }
    int in_vain() LOCKSTEP_EXCLUDES(mutex_) {
      MutexLock lock(mutex_);
      if (until_.expired()) count_ = 0;
      return count_;
    }
    void add() LOCKSTEP_EXCLUDES(mutex_) {
      MutexLock lock(mutex_);
      count_ = std::min(count_ + 1, 16);
      until_ = Deadline::after(std::chrono::seconds(5));
    }

   private:
    Mutex mutex_;
    int count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
    Deadline until_ LOCKSTEP_GUARDED_BY(mutex_) = Deadline::never();
  };

  const Deadline deadline_;
  bool waits_ = false;
};

// A rank that starts operations faster than the others would hold the memory of ever more of them. So it pauses in
// start() until `done` returns true, and not for long: the others may wait for what this rank starts next, in another
// group.
template <typename Done>
void let_others_catch_up(const Group& group, Done done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  while (!done() && std::chrono::steady_clock::now() < end) {
    GroupRegistry::of_process().progress_others(group);
    std::this_thread::yield();
  }
}

}  // namespace lockstep::comm
