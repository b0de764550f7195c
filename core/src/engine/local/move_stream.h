// MoveStream: streaming of everything except all-reduce and large reduce. It is used when every rank blocks and some
// inputs are private.
//
// What passes between two ranks is cut into chunks, the same for every pair. For each chunk, every rank
//   1. copies what others are to get into its staging (staging_ring.h), only once if all get the same;
//   2. copies what it sends to itself, while that is in its cache;
//   3. fetches, or reduces, what the others have laid out for it.
// So one rank fills chunk k + 1 while another empties chunk k. Inputs that lie in an arena, or in control memory, are
// fetched from there. At the end, a rank whose arena others have read waits for all ranks.
//
// The chunks are timed to choose how staging is written (copy_ways.h).
#pragma once

#include <vector>

#include "copy_ways.h"
#include "engine/core/request.h"
#include "group_memory.h"
#include "plan.h"
#include "staging_ring.h"

namespace lockstep::comm {

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
