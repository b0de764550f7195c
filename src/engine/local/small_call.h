// A small operation, in one meeting: each rank copies its inputs into control memory with its post, and who has seen
// every post fetches or reduces its own result. Nothing is claimed, and nobody waits for anybody's work.
//
// Used by a rank that blocks. Others post by Collective; their posts serve just as well if they say kInlined.
#pragma once

#include "collective.h"
#include "engine/core/request.h"
#include "group_memory.h"
#include "reduce/copy_choice.h"
#include "waiting.h"

namespace lockstep::comm {

// How far apart inline pieces of `bytes` lie.
inline std::size_t inline_stride(std::size_t bytes, bool tiny) {
  constexpr std::size_t kAlignment = 16;
  return tiny ? bytes : (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class SmallCall {
 public:
  // `request` has been validated, and outlives this.
  SmallCall(const GroupMemory& memory, const RequestView& request);

  // Whether it can be done this way, as far as this rank can tell.
  bool fits() const { return fits_; }
  // Bytes that this rank copies, or fetches if that is more.
  std::size_t bytes() const { return bytes_; }
  void post(const Waiting& waiting, std::uint64_t sequence, CopyWay way);
  // Whether a rank that has posted asks for the same and has inlined its inputs. If not: the long way finds out why.
  bool agrees(const Post& theirs) const;
  // Once all ranks have posted and agree.
  void fetch(Scratch& scratch) const;

 private:
  std::byte* piece_of(int from, int to) const;
  void copy_inputs(std::byte* place, bool tiny, CopyWay way) const;
  void reduce_into(void* output, int to, Scratch& scratch) const;

  const GroupMemory& memory_;
  const RequestView& request_;
  std::size_t piece_ = 0;   // bytes
  std::size_t inputs_ = 0;  // how many this rank has
  std::size_t bytes_ = 0;
  bool fits_ = false;
  const Post* mine_ = nullptr;
  std::uint64_t sequence_ = 0;
};

}  // namespace lockstep::comm
