// While it lives, the signals that ask to end (SIGTERM, SIGINT, SIGHUP, SIGQUIT) arrive at fd() instead of ending the
// process.
#pragma once

#include <csignal>

#include "lockstep/base/fd.h"

namespace lockstep::report {

struct Interrupt {
  int signal = 0;            // 0: none
  bool of_terminal = false;  // it went to the whole foreground group, to children of this process too
};

class Interrupts {
 public:
  // For a process of one thread. Signals that the process ignores (nohup) stay so.
  Interrupts();
  // One that has come meanwhile and was not taken is forgotten.
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int fd() const { return fd_.get(); }
  // The next one. Does not block.
  Interrupt take();
  // The first signal that was taken, or 0.
  int first() const { return first_; }
  // For a child of a fork, before it becomes another program: the signals as they were.
  void restore_signals() const;

 private:
  Fd fd_;
  sigset_t old_mask_{};
  int first_ = 0;
};

}  // namespace lockstep::report
