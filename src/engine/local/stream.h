// Streaming reductions: all-reduce, and large reduce, of buffers that others cannot see, when every rank stays in the
// call.
//
// The data passes piece by piece, from the end (which was written last), through a staging area of each rank. A piece
// has one slice for each rank:
//   1. every rank lays out the slices of the others in its staging, and all meet;
//   2. each reduces its own slice, from its own buffer and the others' staging, into its own buffer and its staging,
//      and all meet;
//   3. each collects the others' results from their staging.
// Of reduce, only the root has a result, and only it collects.
//
// Between two ranks a small piece of all-reduce takes one meeting instead: each lays out the whole of it and reduces
// the whole for itself.
//
// A staging area (staging_ring.h) holds three pieces, not two, and small pieces follow one another without gaps: a line
// that another core holds in its cache costs its writer dearly, so a place should rest until the reader's second-level
// cache has lost it.
//
// Rank 0 times its work on the pieces and chooses for all how staging is written (copy_choice.h).
#pragma once

#include <vector>

#include "engine/core/request.h"
#include "group_memory.h"
#include "lockstep/reduce/reduce.h"
#include "reduce/copy_choice.h"
#include "staging_ring.h"
#include "waiting.h"

namespace lockstep::comm {

class Stream {
 public:
  using WaitFor = StagingRing::WaitFor;

  Stream(const GroupMemory& memory, const Waiting& waiting, StagingRing& ring);

  // What is better done this way than by MoveStream.
  static bool suits(const Request& request);
  // All-reduce or reduce.
  Status run(const Request& request, const WaitFor& wait_for);

 private:
  Status wait_until_reduced(const WaitFor& wait_for) const;
  Status pass_chunk(const Request& request, std::size_t begin, std::size_t count, const WaitFor& wait_for);
  Status pass_small_chunk(const Request& request, std::size_t begin, std::size_t count, const WaitFor& wait_for);
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
  std::vector<const std::byte*> inputs_;  // of the reduction at hand, by rank
  CopyWay way_ = CopyWay::kPlain;
  CopyChoice choice_;  // used on rank 0
};

}  // namespace lockstep::comm
