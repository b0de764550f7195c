#include "launch/process/signal_watch.h"

#include <pthread.h>
#include <sys/signalfd.h>

#include "base/poll.h"

namespace lockstep::launch {

SignalWatch::SignalWatch() {
  const sigset_t ends = without_ignored({SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  const sigset_t for_workers = without_ignored({SIGUSR1, SIGUSR2});
  pthread_sigmask(SIG_BLOCK, &ends, &old_mask_);
  pthread_sigmask(SIG_BLOCK, &for_workers, nullptr);
  fd_.reset(signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
  workers_fd_.reset(signalfd(-1, &for_workers, SFD_CLOEXEC | SFD_NONBLOCK));
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &old_pipe_);
  sigaction(SIGXFSZ, &ignore, &old_file_size_);
}

SignalWatch::~SignalWatch() {
  // One that came when there were no workers would end this process now.
  while (take_for_workers() != 0) {
  }
  sigaction(SIGXFSZ, &old_file_size_, nullptr);
  sigaction(SIGPIPE, &old_pipe_, nullptr);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

int SignalWatch::take() {
  const auto now = std::chrono::steady_clock::now();
  const auto next = [this] {
    const signalfd_siginfo signal = next_signal(fd_.get());
    at_once_ = at_once_ || (signal.ssi_code == SI_QUEUE && signal.ssi_int == kAtOnce);
    return static_cast<int>(signal.ssi_signo);
  };
  int number = next();
  while (number != 0 && !at_once_ && asked_ && now - *asked_ < kOneRequest) number = next();
  if (number != 0 && !asked_) asked_ = now;
  return number;
}

int SignalWatch::take_for_workers() {
  return static_cast<int>(next_signal(workers_fd_.get()).ssi_signo);
}

}  // namespace lockstep::launch
