#include "launch/signal_watch.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <initializer_list>

namespace lockstep::launch {
namespace {

sigset_t set_of(std::initializer_list<int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) {
    // A signal that was ignored at our start (nohup) stays ignored.
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  return set;
}

int next_of(int fd) {
  signalfd_siginfo info{};
  return read(fd, &info, sizeof info) == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace

SignalWatch::SignalWatch() {
  const sigset_t ends = set_of({SIGTERM, SIGINT, SIGHUP});
  const sigset_t for_workers = set_of({SIGUSR1, SIGUSR2});
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
  return next_of(fd_.get());
}

int SignalWatch::take_for_workers() {
  return next_of(workers_fd_.get());
}

}  // namespace lockstep::launch
