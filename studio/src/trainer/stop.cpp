#include "stop.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "nn/all_ranks.h"
#include "nn/device_backend.h"

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

StopVote::Exchange StopVote::begin(int mine) {
  const auto backend = nn_detail::DeviceBackend::for_host_data(nullptr, local_device());
  Exchange exchange{torch::tensor({mine, -mine}, torch::kInt).to(backend.device()), nullptr};
  exchange.work = backend.start_max(exchange.reasons);
  return exchange;
}

StopVote::Reasons StopVote::end(Exchange& exchange) {
  if (exchange.work) std::exchange(exchange.work, nullptr)->wait();
  const torch::Tensor reasons = exchange.reasons.cpu();
  return {-reasons[1].item<int>(), reasons[0].item<int>()};
}

int StopVote::agree(int mine) {
  Exchange exchange = begin(mine);
  return end(exchange).greatest;
}

int StopVote::earlier() {
  std::optional<Exchange> begun = std::exchange(begun_, std::nullopt);
  return begun ? end(*begun).greatest : 0;
}

int StopVote::after_step(int mine) {
  if (!nn_detail::has_other_ranks(nullptr)) return mine;
  if (const int before = earlier(); before != 0) return std::max(before, agree(mine));
  begun_ = begin(mine);
  if (mine == 0) return 0;
  const Reasons reasons = end(*begun_);
  if (reasons.least == 0) return 0;  // a rank that was not asked goes on, so all do
  begun_.reset();
  return reasons.greatest;
}

int StopVote::now(int mine) {
  if (!nn_detail::has_other_ranks(nullptr)) return mine;
  return std::max(earlier(), agree(mine));
}

}  // namespace lockstep::trainer_detail
