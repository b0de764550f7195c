// SmallCall: a small operation in one meeting. Each rank copies its inputs into control memory and posts. A rank that
// has seen all posts fetches or reduces its own result. No ticket is claimed, and no rank waits for another's work.
//
// It is used by ranks that block. Other ranks post through Collective; their posts fit if they have kInlined.
#pragma once

#include "base/arithmetic.h"
#include "collective.h"
#include "copy_ways.h"
#include "engine/core/request.h"
#include "group_memory.h"
#include "waiting.h"

namespace lockstep::comm {

// The distance between inline pieces of `bytes`.
inline std::size_t inline_stride(std::size_t bytes, bool tiny) {
  constexpr std::size_t kAlignment = 16;
  return tiny ? bytes : round_up(bytes, kAlignment);
}

// What the small calls of a rank keep from one to the next.
struct SmallCallCache {
  CopyWays ways;
  bool payloads_touched = false;  // the pages of large payloads exist
  Scratch scratch = {};
};

class SmallCall {
 public:
  // `request` has been validated, and must outlive this object.
  SmallCall(const GroupMemory& memory, const RequestView& request);

  // Whether the request can be done this way, as far as this rank can tell.
  bool fits() const { return fits_; }
  // Posts, spins until the other ranks have posted, and gets the result. False: some rank is late, asks for something
  // else or has not inlined its inputs. Collective then continues the operation (Collective::adopt_small()).
  bool run(const Waiting& waiting, std::uint64_t sequence, SmallCallCache& cache);

 private:
  void post(const Waiting& waiting, std::uint64_t sequence, CopyWay way);
  bool agrees(const Post& theirs) const;
  void fetch(Scratch& scratch) const;
  std::byte* piece_of(int from, int to) const;
  void copy_inputs(std::byte* place, bool tiny, CopyWay way) const;
  void reduce_into(void* output, int to, Scratch& scratch) const;

  const GroupMemory& memory_;
  const RequestView& request_;
  std::size_t piece_ = 0;   // bytes
  std::size_t inputs_ = 0;  // how many this rank has
  std::size_t bytes_ = 0;   // that this rank copies or fetches, whichever is more
  bool fits_ = false;
  // Larger all-reduces have no tickets for inlined inputs. If some rank does not inline its input, the ranks stream, or
  // this one stages late.
  bool needs_all_inlined_ = false;
  const Post* mine_ = nullptr;
  std::uint64_t sequence_ = 0;
};

}  // namespace lockstep::comm
