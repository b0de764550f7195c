#include "waiting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/fault_point.h"
#include "engine/core/failure.h"

namespace lockstep::comm {
namespace {

constexpr int kSpins = 500;  // some 15 us
constexpr int kTurns = 2;    // with more ranks than cores: how many turns every other rank of this core gets
constexpr auto kYieldFor = std::chrono::microseconds(2000);
constexpr auto kYieldForCrowded = std::chrono::microseconds(200);
// A sleep while other groups have operations under way: the ranks of those do not ring this group's bell.
constexpr auto kNap = std::chrono::microseconds(500);

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout) {
  const timespec limit{0, static_cast<long>(timeout.count())};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

template <std::size_t N>
void put(const std::string& message, char (&to)[N]) {
  const std::string text = shortened(message, N - 1);
  std::memcpy(to, text.c_str(), text.size() + 1);
}

int cores() {
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

Waiting::Waiting(const GroupMemory& memory, const Group& group)
    : memory_(memory),
      group_(group),
      crowded_(memory.size() > cores()),
      spins_(crowded_ ? kTurns * (memory.size() / cores()) : kSpins),
      yield_for_(crowded_ ? kYieldForCrowded : kYieldFor) {}

void Waiting::pause(std::chrono::steady_clock::time_point& idle_since, const std::function<int()>& awaited,
                    const std::function<bool()>& done) const {
  const GroupRegistry::Others others = GroupRegistry::of_process().progress_others(group_);
  const auto now = std::chrono::steady_clock::now();
  if (others.moved) idle_since = now;
  if (now - idle_since < yield_for_) {
    sched_yield();
    return;
  }
  RankState& mine = memory_.state(memory_.rank());
  const std::uint32_t bell = mine.bell.load(std::memory_order_seq_cst);
  const int rank = awaited();
  mine.waiting.store(kWaitingForAny + static_cast<std::uint32_t>(rank + 1), std::memory_order_seq_cst);
  memory_.header().sleepers.fetch_add(1, std::memory_order_seq_cst);
  // A rank that does not see this sleeper in notify() has stored before: `done` sees that.
  fence(std::memory_order_seq_cst);
  if (!done() && awaited() == rank && !aborted()) {
    futex_wait(mine.bell, bell, others.busy ? std::chrono::nanoseconds(kNap) : std::chrono::nanoseconds(kCheckEvery));
  }
  memory_.header().sleepers.fetch_sub(1, std::memory_order_seq_cst);
  mine.waiting.store(kNotWaiting, std::memory_order_relaxed);
}

void Waiting::wake(bool posted) const {
  const auto for_me = kWaitingForAny + static_cast<std::uint32_t>(memory_.rank() + 1);
  for (int rank = 0; rank < memory_.size(); ++rank) {
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
  {
    MutexLock lock(abort_mutex_);
    if (aborted()) return;
    AbortReason& mine = memory_.abort_reason(memory_.rank());
    mine.code = static_cast<std::uint32_t>(code);
    put(message, mine.message);
    LOCKSTEP_FAULT_POINT("abort: written");
    std::uint32_t none = 0;
    memory_.header().aborted_by.compare_exchange_strong(none, static_cast<std::uint32_t>(memory_.rank() + 1),
                                                        std::memory_order_seq_cst);
    // The caller may now use its buffers for something else. A rank that reads the new contents must see the abort.
    fence(std::memory_order_seq_cst);
  }
  LOCKSTEP_FAULT_POINT("abort: stored");
  for (int rank = 0; rank < memory_.size(); ++rank) {
    memory_.state(rank).bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(memory_.state(rank).bell);
  }
}

Status Waiting::abort_status() const {
  const int rank = static_cast<int>(memory_.header().aborted_by.load(std::memory_order_acquire)) - 1;
  const AbortReason& reason = memory_.abort_reason(rank);
  return {static_cast<ErrorCode>(reason.code), reason.message};
}

void Waiting::note(const std::string& cause) const {
  MutexLock lock(abort_mutex_);
  KnownCause& mine = memory_.known_cause(memory_.rank());
  if (mine.is_set.load(std::memory_order_relaxed) != 0) return;
  put(cause, mine.cause);
  LOCKSTEP_FAULT_POINT("cause: noted");
  mine.is_set.store(1, std::memory_order_seq_cst);
}

std::string Waiting::known_cause(int rank) const {
  const KnownCause& theirs = memory_.known_cause(rank);
  return theirs.is_set.load(std::memory_order_acquire) != 0 ? std::string(theirs.cause) : std::string();
}

}  // namespace lockstep::comm
