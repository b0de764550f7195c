#include "stop_signals.h"

#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace lockstep::trainer_detail {
namespace {

std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_milliseconds{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

// Milliseconds in which a second signal is the same request: a launcher passes on the Ctrl-C that the terminal has
// already sent to the whole job.
constexpr std::int64_t kSameRequest = 1000;

std::int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

extern "C" void note_signal(int number) {
  const int saved = errno;
  int none = 0;
  if (first_signal.compare_exchange_strong(none, number)) {
    first_milliseconds = now();
  } else if (first_milliseconds != 0 && now() - first_milliseconds >= kSameRequest) {
    ::signal(number, SIG_DFL);
    ::raise(number);  // arrives when this handler returns
  }
  errno = saved;
}

}  // namespace

StopSignals::StopSignals(bool wanted) {
  first_signal = 0;
  first_milliseconds = 0;
  if (!wanted) return;
  for (Taken& entry : signals_) {
    ::sigaction(entry.number, nullptr, &entry.before);
    if ((entry.before.sa_flags & SA_SIGINFO) != 0 || entry.before.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    entry.taken = ::sigaction(entry.number, &action, nullptr) == 0;
  }
}

StopSignals::~StopSignals() {
  for (const Taken& entry : signals_) {
    if (entry.taken) ::sigaction(entry.number, &entry.before, nullptr);
  }
}

int StopSignals::pending() noexcept {
  return first_signal;
}

}  // namespace lockstep::trainer_detail
