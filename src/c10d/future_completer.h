// Completes the futures of unfinished works. Futures promise to become ready by themselves, and the engine has no
// progress thread; so the first future that somebody asks for starts one. It looks at its works with growing pauses (at
// most 1 ms).
//
// A callback may wait for another future, so the thread that runs it cannot be the one that completes that other. One
// thread leads: it looks for a work that is over, leaves the lead, and completes that work's future. Where works
// remain, or come while it is busy, another thread leads; it is started when all that are there are inside callbacks.
#pragma once

#include <memory>

#include "c10d/group_work.h"

namespace lockstep {

class FutureCompleter {
 public:
  // Throws BackendError (kUnavailable) when the system refuses a thread.
  FutureCompleter();
  ~FutureCompleter();
  FutureCompleter(const FutureCompleter&) = delete;
  FutureCompleter& operator=(const FutureCompleter&) = delete;

  // Completes the work's future when it is over, at the latest at its deadline. False after begin_stop(). Throws when
  // no thread can be started.
  bool add(GroupWorkPtr work);

  // Completes what is left now, with errors where works are not over.
  void begin_stop();
  // Waits for that and for callbacks to end. But not inside the callback of a future: those who wait for one another
  // would wait for ever, so threads end by themselves then.
  void stop();

 private:
  class Queue;

  const std::shared_ptr<Queue> queue_;  // shared with the threads, which may outlive this
};

}  // namespace lockstep
