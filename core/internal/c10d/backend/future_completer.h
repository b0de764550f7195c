// Completes the futures of unfinished works. A future has to become ready by itself, but the engine has no progress
// thread. Therefore the first future that somebody asks for starts one. It tests its works with growing pauses (at most
// 1 ms).
//
// A callback may wait for another future, so the thread that runs the callback cannot complete that future too. One
// thread leads: it looks for a work that is over, gives up the lead, and completes that work's future. If works remain,
// or come while it is busy, another thread takes the lead. A new thread starts when all threads are inside callbacks.
#pragma once

#include <memory>

#include "c10d/backend/group_work.h"

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

  // Has all remaining futures completed now, with errors where works are not over.
  void begin_stop();
  // The same, and waits until callbacks have ended. Inside a callback it does not wait: callbacks that wait for one
  // another would never end. The threads then end by themselves.
  void stop();

 private:
  class Queue;

  const std::shared_ptr<Queue> queue_;  // shared with the threads, which may outlive this
};

}  // namespace lockstep
