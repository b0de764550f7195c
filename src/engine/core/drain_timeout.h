// How long a group that is left may wait for others. Who stands still for one group stands still for the next: each
// wait in vain halves the time of those that soon follow it. So a process that leaves many groups of a frozen rank, or
// of a machine that is gone, waits twice the first time in all.
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

  // Asked by who has to wait: whether it still may, or for how long.
  bool may_wait() { return remaining() > std::chrono::milliseconds(0); }
  std::chrono::milliseconds remaining() {
    waits_ = true;
    return std::chrono::ceil<std::chrono::milliseconds>(deadline_.remaining());
  }

 private:
  // The waits in vain of this process.
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
