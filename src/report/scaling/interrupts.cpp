#include "report/scaling/interrupts.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace lockstep::report {

Interrupts::Interrupts() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
  pthread_sigmask(SIG_BLOCK, &signals, &old_mask_);
  fd_.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

Interrupts::~Interrupts() {
  while (take().signal != 0) {
  }
  restore_signals();
}

Interrupt Interrupts::take() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return {};
  if (first_ == 0) first_ = static_cast<int>(info.ssi_signo);
  return {static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
}

void Interrupts::restore_signals() const {
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

}  // namespace lockstep::report
