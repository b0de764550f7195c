// Completes the futures of unfinished works. Futures promise to become ready by themselves, and the engine has no
// progress thread; so the first future that somebody asks for starts this one. It looks at its works with growing
// pauses (at most 1 ms).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <thread>

namespace lockstep {

class LockstepWork;

class FutureCompleter {
 public:
  FutureCompleter();
  ~FutureCompleter();
  FutureCompleter(const FutureCompleter&) = delete;
  FutureCompleter& operator=(const FutureCompleter&) = delete;

  // Completes the work's future when it is done, at the latest at its deadline. After stop(): at once, with an error.
  void add(c10::intrusive_ptr<LockstepWork> work);

  // Has what is left completed with an error and ends the thread. Waits for both, but not when a future's callback
  // calls it: that runs in the thread itself, which then ends by itself after the callback.
  void stop();

 private:
  class Queue;

  const std::shared_ptr<Queue> queue_;  // shared with the thread, which may outlive this
  std::thread thread_;
};

}  // namespace lockstep
