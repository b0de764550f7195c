// Completes the futures of unfinished works. Futures promise to become ready by themselves, and the engine has no
// progress thread; so the first future that somebody asks for starts this one. It looks at its works with growing
// pauses (at most 1 ms).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <thread>
#include <vector>

#include "lockstep/base/mutex.h"

namespace lockstep {

class LockstepWork;

class FutureCompleter {
 public:
  FutureCompleter();
  ~FutureCompleter();
  FutureCompleter(const FutureCompleter&) = delete;
  FutureCompleter& operator=(const FutureCompleter&) = delete;

  // Completes the work's future when it is done, at the latest at its deadline. After stop(): at once, with an error.
  void add(c10::intrusive_ptr<LockstepWork> work) LOCKSTEP_EXCLUDES(mutex_);

  // Completes what is left with an error and joins the thread. Not from a future's callback, which runs in that thread.
  void stop() LOCKSTEP_EXCLUDES(mutex_);

 private:
  using Works = std::vector<c10::intrusive_ptr<LockstepWork>>;
  void run() LOCKSTEP_EXCLUDES(mutex_);
  // Adds new works to `works`; waits for some when there is nothing to do, else for `pause`. False: stop.
  bool take_new(Works& works, std::chrono::microseconds pause) LOCKSTEP_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  Works added_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep
