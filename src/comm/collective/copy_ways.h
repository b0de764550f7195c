// The ways of copying for other ranks, chosen by rank 0 for all, for each kind of operation (see copy_choice.h).
#pragma once

#include <array>
#include <atomic>
#include <chrono>

#include "copy_choice.h"
#include "group_memory.h"

namespace lockstep::comm {

class CopyWays {
 public:
  // `word` of rank 0 tells the others: bit 1 << kind is a CopyWay.
  explicit CopyWays(const GroupMemory& memory, std::atomic<std::uint32_t> RankState::*word)
      : decides_(memory.rank() == 0), word_(memory.state(0).*word) {}

  // Ranks may see a change late, which harms nobody.
  CopyWay way(Kind kind) const { return static_cast<CopyWay>(word_.load(std::memory_order_relaxed) >> bit(kind) & 1U); }

  // On rank 0: what it took since `started`.
  void record(Kind kind, std::chrono::steady_clock::time_point started, std::size_t bytes) {
    if (!decides_) return;
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - started;
    CopyChoice& choice = choices_[bit(kind)];
    choice.record(took.count() / static_cast<double>(bytes));
    const std::uint32_t others = word_.load(std::memory_order_relaxed) & ~(1U << bit(kind));
    word_.store(others | static_cast<std::uint32_t>(choice.way()) << bit(kind), std::memory_order_relaxed);
  }

 private:
  static unsigned bit(Kind kind) { return static_cast<unsigned>(kind); }

  bool decides_;
  std::atomic<std::uint32_t>& word_;
  std::array<CopyChoice, static_cast<std::size_t>(Kind::kReceive) + 1> choices_;
};

}  // namespace lockstep::comm
