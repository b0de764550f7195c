// StagingRing: the staging through which streams pass private data. Each rank has one area of it, and a counter of how
// far it has come.
//
// Data passes in chunks, with the same numbers and places on every rank. A rank has "laid out" a chunk when its part of
// it is in its staging. By then it has finished with all earlier chunks. So a place may be written again once all ranks
// have laid out the chunk after the one that was there.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>

#include "group_memory.h"
#include "waiting.h"

namespace lockstep::comm {

class StagingRing {
 public:
  // `wait_for(step)` repeats `step` until it returns true, the deadline passes, or the group breaks.
  using Step = std::function<bool()>;
  using WaitFor = std::function<Status(const Step&)>;

  StagingRing(const GroupMemory& memory, const Waiting& waiting);

  // Every rank begins the next chunk, of at most stream_chunk_bytes(). With kWrites, waits until its place is free.
  enum class Use { kReads, kWrites };
  Status begin_chunk(std::size_t bytes, Use use, const WaitFor& wait_for);
  // The current chunk: its number, and its place in the staging of `rank`.
  std::uint64_t number() const { return number_; }
  std::byte* of(int rank) const { return memory_.stream(rank) + place_; }
  void announce();  // tells the others that this rank has laid out its part of the chunk
  Status wait_for_rank(int rank, const WaitFor& wait_for) const;
  Status wait_for_everyone(const WaitFor& wait_for);
  // Until every rank has reduced its part of the chunk.
  Status wait_until_reduced(const WaitFor& wait_for) const;

 private:
  struct Used {
    std::uint64_t number;
    std::size_t begin;
    std::size_t end;
  };

  template <typename Reached>
  Status wait(Reached reached, const WaitFor& wait_for) const;
  Status reached_by_all(std::atomic<std::uint64_t> RankState::*counter, std::uint64_t number,
                        const WaitFor& wait_for) const;
  Status laid_out_by_all(std::uint64_t number, const WaitFor& wait_for);

  const GroupMemory& memory_;
  const Waiting& waiting_;
  const std::size_t bytes_;
  bool touched_ = false;
  std::uint64_t number_ = 0;
  std::uint64_t common_ = 0;  // all ranks have laid out the chunks up to this one
  std::size_t place_ = 0;
  std::size_t next_place_ = 0;
  std::deque<Used> used_;  // places that other ranks may still read, oldest first
};

}  // namespace lockstep::comm
