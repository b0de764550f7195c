// A thread for system calls on the launcher's output. A terminal or a file server that stands still may keep such a
// call forever. So the thread can be interrupted, and left if even that does not end it.
#pragma once

#include <pthread.h>

#include <functional>

#include "lockstep/base/status.h"

namespace lockstep::launch {

class OutputThread {
 public:
  // The thread receives no signals that are meant for the launcher, nor those that a write can cause (SIGPIPE, SIGXFSZ,
  // SIGTTOU in a background job). `body` owns what it uses: it may outlive everything else.
  static Result<OutputThread> start(std::function<void()> body);

  // To call once, when `body` has been told to return. Interrupts its system calls (EINTR) until it has returned. After
  // 1 s it leaves the thread.
  void end() const;

 private:
  explicit OutputThread(pthread_t thread) : thread_(thread) {}

  pthread_t thread_;
};

}  // namespace lockstep::launch
