#include "report/scaling/interrupts.h"

#include <pthread.h>
#include <sys/signalfd.h>

#include "base/poll.h"

namespace lockstep::report {

Interrupts::Interrupts() {
  const sigset_t signals = without_ignored({SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  pthread_sigmask(SIG_BLOCK, &signals, &old_mask_);
  fd_.reset(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.valid()) restore_signals();  // no descriptor is left: they end the process, as without this object
}

Interrupts::~Interrupts() {
  while (take().signal != 0) {
  }
  restore_signals();
}

Interrupt Interrupts::take() {
  const signalfd_siginfo info = next_signal(fd_.get());
  if (info.ssi_signo == 0) return {};
  if (first_ == 0) first_ = static_cast<int>(info.ssi_signo);
  return {static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
}

void Interrupts::restore_signals() const {
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

}  // namespace lockstep::report
