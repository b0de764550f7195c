// CopyWays: for each kind of operation, how data that other ranks read is copied (see copy_choice.h).
//
// One rank chooses for all ranks, by the time that the operation takes on that rank. It is a rank that receives: a rank
// that only lays out data does not see what the others pay to read it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>

#include "engine/core/request.h"
#include "group_memory.h"
#include "reduce/copy_choice.h"

namespace lockstep::comm {

class CopyWays {
 public:
  // `word` is where a rank publishes its choice: bit 1 << kind is a CopyWay.
  CopyWays(const GroupMemory& memory, std::atomic<std::uint32_t> RankState::*word) : memory_(memory), word_(word) {}

  // Ranks may see a change late, which does no harm.
  CopyWay way(const RequestTerms& request) const {
    const std::uint32_t ways = word_of(judge(request)).load(std::memory_order_relaxed);
    return static_cast<CopyWay>(ways >> bit(request.kind) & 1U);
  }

  // Records how long `bytes` have taken since `started`.
  void record(const RequestTerms& request, std::chrono::steady_clock::time_point started, std::size_t bytes) {
    if (judge(request) != memory_.rank()) return;
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - started;
    CopyChoice& choice = choices_[bit(request.kind)];
    choice.record(took.count() / static_cast<double>(bytes));
    std::atomic<std::uint32_t>& word = word_of(memory_.rank());
    const std::uint32_t others = word.load(std::memory_order_relaxed) & ~(1U << bit(request.kind));
    word.store(others | static_cast<std::uint32_t>(choice.way()) << bit(request.kind), std::memory_order_relaxed);
  }

 private:
  static unsigned bit(Kind kind) { return static_cast<unsigned>(kind); }
  std::atomic<std::uint32_t>& word_of(int rank) const { return memory_.state(rank).*word_; }
  int judge(const RequestTerms& request) const {
    switch (request.kind) {
      case Kind::kBroadcast:
      case Kind::kScatter: return (request.root + 1) % memory_.size();
      case Kind::kGather:
      case Kind::kReduce: return request.root;
      default: return 0;
    }
  }

  const GroupMemory& memory_;
  std::atomic<std::uint32_t> RankState::*word_;
  std::array<CopyChoice, static_cast<std::size_t>(Kind::kReceive) + 1> choices_;
};

}  // namespace lockstep::comm
