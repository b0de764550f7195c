// DrainTimeout: how long a rank that leaves a group, or has seen it break, waits for what others have under way.
//
// A rank that is frozen in one group is frozen in the next group too. Therefore each wait in vain halves the time of
// the waits that soon follow it. A process that leaves many groups with a frozen rank, or with a machine that is gone,
// waits at most twice the first time altogether.
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"

namespace lockstep::comm {

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

}  // namespace lockstep::comm
