// While it lives, the signals that ask a launcher to end (SIGTERM, SIGINT, SIGHUP, SIGQUIT) arrive at fd(), and those
// that go to the workers and mean nothing to the launcher (SIGUSR1, SIGUSR2) at workers_fd(). SIGPIPE and SIGXFSZ are
// ignored: output that cannot be written must not kill the launcher.
//
// One request to end often comes as two signals: `timeout` signals its child and then its group, a shell and the kernel
// both send SIGHUP when a terminal closes, and systemd may send SIGHUP after SIGTERM. So those within kOneRequest of
// the first one are dropped.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  static constexpr std::chrono::milliseconds kOneRequest{500};
  // A SIGTERM that is sent with this value (`lockstep stop --now`) asks for the end at once, as a second request does.
  static constexpr int kAtOnce = 0x4e4f57;

  // Readable when a signal has arrived.
  int fd() const { return fd_.get(); }
  int workers_fd() const { return workers_fd_.get(); }
  // The next request to end, or 0. Does not block.
  int take();
  bool at_once() const { return at_once_; }  // whether one that was taken asked for the end at once
  int take_for_workers();

 private:
  Fd fd_;
  Fd workers_fd_;
  std::optional<std::chrono::steady_clock::time_point> asked_;  // when the first one came
  bool at_once_ = false;
  sigset_t old_mask_{};
  struct sigaction old_pipe_ {};
  struct sigaction old_file_size_ {};
};

}  // namespace lockstep::launch
