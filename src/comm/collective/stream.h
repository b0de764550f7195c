// Streaming all-reduce: for buffers that others cannot see, when every rank stays in the call.
//
// The data passes piece by piece, from the end (which was written last), through a staging area of each rank. A piece
// has one slice for each rank:
//   1. every rank lays out the slices of the others in its staging, and all meet;
//   2. each reduces its own slice, from its own buffer and the others' staging, into its own buffer and its staging,
//   and
//      all meet;
//   3. each collects the others' results from their staging.
//
// Between two ranks a small piece takes one meeting instead: each lays out the whole of it and reduces the whole for
// itself.
//
// A staging area holds three pieces in turn. A place is written again at the earliest two pieces later: by then every
// rank has laid out the piece between, and so has collected this one. That makes it three, not two: a line that another
// core holds in its cache costs its writer dearly, so a place should rest until the reader's second-level cache has
// lost it. Small pieces follow one another without gaps for the same reason.
//
// Rank 0 times its work on the pieces and chooses for all how staging is written (copy_choice.h).
#pragma once

#include <functional>
#include <vector>

#include "copy_choice.h"
#include "group_memory.h"
#include "request.h"
#include "waiting.h"

namespace lockstep::comm {

class Stream {
 public:
  Stream(const GroupMemory& memory, const Waiting& waiting);

  // `wait_for(awaited, step)` waits as the Communicator does: deadline, abort and deaths included.
  using Step = std::function<bool()>;
  using WaitFor = std::function<Status(const Step&)>;
  Status all_reduce(const Request& request, const WaitFor& wait_for);

 private:
  Status everyone(std::atomic<std::uint64_t> RankState::*counter, std::uint64_t value, const WaitFor& wait_for) const;
  void touch_staging();
  std::size_t place_of(std::size_t bytes);
  Status pass_piece(const Request& request, std::size_t begin, std::size_t count, const WaitFor& wait_for);
  Status pass_small_piece(const Request& request, std::size_t begin, std::size_t count, const WaitFor& wait_for);
  void lay_out(const Request& request, std::size_t begin, std::size_t count);
  void reduce_slice(const Request& request, std::size_t begin, std::size_t count);
  void collect_slices(const Request& request, std::size_t begin, std::size_t count);
  void gather_inputs(const Request& request, std::size_t begin, std::size_t from);
  void stage(std::byte* to, const std::byte* from, std::size_t bytes) const;
  std::size_t slice_begin(std::size_t count, std::size_t element, int rank) const;
  std::byte* staging(int rank) const { return memory_.stream(rank) + place_; }

  const GroupMemory& memory_;
  const Waiting& waiting_;
  std::size_t piece_bytes_;
  std::uint64_t pieces_ = 0;  // laid out by every rank so far, over all operations
  bool touched_ = false;
  std::size_t place_ = 0;  // of the piece at hand, the same in every rank's staging
  std::size_t next_place_ = 0;
  std::vector<const std::byte*> inputs_;  // of the reduction at hand, by rank
  CopyWay way_ = CopyWay::kPlain;
  CopyChoice choice_;  // used on rank 0
};

}  // namespace lockstep::comm
