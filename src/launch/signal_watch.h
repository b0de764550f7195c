// While it lives, the signals that ask a launcher to end (SIGTERM, SIGINT, SIGHUP) arrive at fd(). SIGPIPE and SIGXFSZ
// are ignored: output that cannot be written must not kill the launcher.
#pragma once

#include <csignal>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when a signal has arrived.
  int fd() const { return fd_.get(); }
  // The next signal, or 0. Does not block.
  int take();

 private:
  Fd fd_;
  sigset_t old_mask_{};
  struct sigaction old_pipe_ {};
  struct sigaction old_file_size_ {};
};

}  // namespace lockstep::launch
