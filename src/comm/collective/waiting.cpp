#include "waiting.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <thread>

namespace lockstep::comm {
namespace {

constexpr int kSpins = 500;              // some 15 us
constexpr int kSpinsOversubscribed = 1;  // the awaited rank may need this core
constexpr auto kYieldFor = std::chrono::microseconds(2000);
constexpr auto kYieldForOversubscribed = std::chrono::microseconds(200);

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout) {
  const timespec limit{0, static_cast<long>(timeout.count())};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

int cores() {
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

Waiting::Waiting(const GroupMemory& memory) : memory_(memory) {
  const bool crowded = memory.world() > cores();
  spins_ = crowded ? kSpinsOversubscribed : kSpins;
  yield_for_ = crowded ? kYieldForOversubscribed : kYieldFor;
}

void Waiting::pause(std::chrono::steady_clock::time_point started, int awaited,
                    const std::function<bool()>& done) const {
  if (std::chrono::steady_clock::now() - started < yield_for_) {
    sched_yield();
    return;
  }
  RankState& mine = memory_.state(memory_.rank());
  const std::uint32_t bell = mine.bell.load(std::memory_order_seq_cst);
  mine.waiting.store(kWaitingForAny + static_cast<std::uint32_t>(awaited + 1), std::memory_order_seq_cst);
  memory_.header().sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (!done() && !aborted()) futex_wait(mine.bell, bell, kCheckEvery);
  memory_.header().sleepers.fetch_sub(1, std::memory_order_seq_cst);
  mine.waiting.store(kNotWaiting, std::memory_order_relaxed);
}

void Waiting::wake(bool posted) const {
  const auto for_me = kWaitingForAny + static_cast<std::uint32_t>(memory_.rank() + 1);
  for (int rank = 0; rank < memory_.world(); ++rank) {
    if (rank == memory_.rank()) continue;
    RankState& other = memory_.state(rank);
    const std::uint32_t waiting = other.waiting.load(std::memory_order_seq_cst);
    if (waiting == kNotWaiting) continue;
    if (waiting != kWaitingForAny && !(posted && waiting == for_me)) continue;
    other.bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(other.bell);
  }
}

void Waiting::abort(ErrorCode code, const std::string& message) const {
  Header& header = memory_.header();
  std::uint32_t none = 0;
  if (header.abort_state.compare_exchange_strong(none, 1)) {
    header.abort_code.store(static_cast<std::uint32_t>(code));
    std::strncpy(header.abort_message, message.c_str(), sizeof(header.abort_message) - 1);
    header.abort_state.store(2, std::memory_order_seq_cst);
  }
  for (int rank = 0; rank < memory_.world(); ++rank) {
    memory_.state(rank).bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(memory_.state(rank).bell);
  }
}

Status Waiting::abort_status() const {
  const Header& header = memory_.header();
  return {static_cast<ErrorCode>(header.abort_code.load()), header.abort_message};
}

bool Waiting::process_gone(int rank) const {
  const Peer& peer = memory_.peer(rank);
  if (!peer.process->valid()) return false;
  pollfd entry{peer.process->get(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
}

}  // namespace lockstep::comm
