// Streaming all-reduce: for buffers that others cannot see, when every rank stays in the call.
//
// The data passes piece by piece through two small staging areas per rank, so that it is still in cache when the others
// read it: a rank lays out piece g, waits until all have, and reduces it. A staging area is written again two pieces
// later: by then every rank has laid out the piece between, and so has finished reading.
//
// Two ranks: each reduces the whole piece for itself, from its own buffer and the other's staging. More ranks: each
// reduces its slice of the piece in its own staging, waits again and copies the others' slices: 2 instead of n reads an
// element.
#pragma once

#include <functional>

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
  void reduce_whole(const Request& request, std::size_t begin, std::size_t count);
  void reduce_slice(const Request& request, std::size_t count);
  void collect_slices(const Request& request, std::size_t begin, std::size_t count);
  std::size_t slice_begin(std::size_t count, std::size_t element, int rank) const;

  const GroupMemory& memory_;
  const Waiting& waiting_;
  std::size_t piece_bytes_;
  std::uint64_t pieces_ = 0;  // laid out by every rank so far, over all operations
};

}  // namespace lockstep::comm
