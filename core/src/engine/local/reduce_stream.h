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
// A staging area (staging_ring.h) holds three chunks, not two, and small chunks follow one another without gaps.
// Writing a line that another core still has in its cache is expensive. So a place should rest until it has left the
// reader's second-level cache.
//
// Rank 0 times its work on the chunks and chooses for all ranks how staging is written (copy_choice.h).
#pragma once

#include <vector>

#include "engine/core/request.h"
#include "group_memory.h"
#include "lockstep/reduce/reduce.h"
#include "reduce/copy_choice.h"
#include "staging_ring.h"
#include "waiting.h"

namespace lockstep::comm {

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

}  // namespace lockstep::comm
