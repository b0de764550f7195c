// The two streams by which ranks that block pass private data, chunk by chunk, through staging.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "copy_ways.h"
#include "engine/core/request.h"
#include "group_memory.h"
#include "lockstep/reduce/reduce.h"
#include "plan.h"
#include "reduce/copy_choice.h"
#include "waiting.h"

namespace lockstep::comm {

// StagingRing: the staging through which streams pass private data. Each rank has one area of it, and a counter of how
// far it has come.
//
// Data passes in chunks, with the same numbers and places on every rank. A rank has "laid out" a chunk when its part of
// it is in its staging. By then it has finished with all earlier chunks. So a place may be written again once all ranks
// have laid out the chunk after the one that was there.
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

// ReduceStream: all-reduce, and large reduce, of private buffers. It is used when every rank blocks.
//
// The data passes chunk by chunk through a staging area of each rank. The last chunk comes first, because the end of
// the buffer was written last and may be in cache. A chunk has one slice for each rank:
//   1. every rank lays out the slices of the others in its staging, and all meet;
//   2. each reduces its own slice, from its own buffer and the others' staging, into its own buffer and its staging,
//      and all meet;
//   3. each collects the others' results from their staging.
// In a reduce, only the root gets a result and collects.
//
// A staging area holds three chunks, not two, and small chunks follow one another without gaps.
// Writing a line that another core still has in its cache is expensive. So a place should rest until it has left the
// reader's second-level cache.
//
// Rank 0 times its work on the chunks and chooses for all ranks how staging is written (copy_choice.h).
class ReduceStream {
 public:
  using WaitFor = StagingRing::WaitFor;

  ReduceStream(const GroupMemory& memory, const Waiting& waiting, StagingRing& ring);

  // Whether this is better than MoveStream for the request.
  static bool suits(const Request& request);
  // `request` is an all-reduce or a reduce.
  Status run(const Request& request, const WaitFor& wait_for);

 private:
  Status pass_chunk(const Request& request, std::size_t begin, std::size_t count, const WaitFor& wait_for);
  bool receives(const Request& request) const;
  void lay_out(const Request& request, std::size_t begin, std::size_t count);
  void reduce_slice(const Request& request, std::size_t begin, std::size_t count);
  void collect_slices(const Request& request, std::size_t begin, std::size_t count) const;
  void reduce_for_all(const Reduction& reduction, std::byte* result, std::byte* place, std::size_t elements);
  void gather_inputs(const Request& request, std::size_t begin, std::size_t from);
  void stage(std::byte* to, const std::byte* from, std::size_t bytes) const;
  std::size_t slice_begin(std::size_t count, std::size_t element, int rank) const;

  const GroupMemory& memory_;
  const Waiting& waiting_;
  StagingRing& ring_;
  std::vector<const std::byte*> inputs_;  // of the current reduction, by rank
  CopyWay way_ = CopyWay::kPlain;
  CopyChoice choice_;  // used on rank 0
};

// MoveStream: streaming of everything except all-reduce and large reduce. It is used when every rank blocks and some
// inputs are private.
//
// What passes between two ranks is cut into chunks, the same for every pair. For each chunk, every rank
//   1. copies what others are to get into its staging, only once if all get the same;
//   2. copies what it sends to itself, while that is in its cache;
//   3. fetches, or reduces, what the others have laid out for it.
// So one rank fills chunk k + 1 while another empties chunk k. Inputs that lie in an arena, or in control memory, are
// fetched from there. At the end, a rank whose arena others have read waits for all ranks.
//
// The chunks are timed to choose how staging is written (copy_ways.h).
class MoveStream {
 public:
  using WaitFor = StagingRing::WaitFor;

  MoveStream(const GroupMemory& memory, const Waiting& waiting, StagingRing& ring)
      : memory_(memory), waiting_(waiting), ring_(ring), ways_(memory, &RankState::move_ways) {}

  // All ranks have posted requests that agree, with number `sequence`.
  Status run(const Request& request, std::uint64_t sequence, const WaitFor& wait_for);

 private:
  // `bytes` from `begin` on, of the data of each pair of ranks (shorter data ends earlier).
  struct Chunk {
    std::size_t begin;
    std::size_t bytes;
  };
  // One operation, as this rank takes part in it.
  struct Job {
    const Request& request;
    const Plan plan;
    bool stages = false;  // this rank's inputs are private
    bool large_results = false;
  };

  std::size_t longest(const Job& job) const;
  std::size_t chunk_bytes(Kind kind, std::size_t longest) const;
  std::size_t receivers(Kind kind) const;
  Status pass(const Job& job, Chunk chunk, const WaitFor& wait_for);
  void lay_out(const Job& job, Chunk chunk) const;
  Status fetch_all(const Job& job, Chunk chunk, const WaitFor& wait_for);
  Status reduce_all(const Job& job, Chunk chunk, const WaitFor& wait_for);
  void fetch(const Job& job, Chunk chunk, int from) const;
  std::byte* staged_at(int from, int to, Kind kind, Chunk chunk) const;
  const std::byte* source(const Job& job, Chunk chunk, int from) const;

  const GroupMemory& memory_;
  const Waiting& waiting_;
  StagingRing& ring_;
  CopyWays ways_;
  CopyWay way_ = CopyWay::kPlain;
  std::vector<const std::byte*> inputs_;  // of the current reduction
};

}  // namespace lockstep::comm
