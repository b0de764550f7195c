#include "stream.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "copy.h"
#include "lockstep/comm/collective/reduce.h"

namespace lockstep::comm {
namespace {

// Two pieces per rank stay in the second-level cache; with many ranks a piece is larger, since each costs two meetings.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
constexpr std::size_t kPieceBytesManyRanks = std::size_t{1} << 20;

}  // namespace

std::size_t stream_piece_bytes(int world) {
  return world > 2 ? kPieceBytesManyRanks : kPieceBytes;
}

Stream::Stream(const GroupMemory& memory, const Waiting& waiting)
    : memory_(memory), waiting_(waiting), piece_bytes_(stream_piece_bytes(memory.world())) {}

Status Stream::everyone(std::atomic<std::uint64_t> RankState::*counter, std::uint64_t value,
                        const WaitFor& wait_for) const {
  int next = 0;
  return wait_for([&] {
    while (next < memory_.world() && (memory_.state(next).*counter).load(std::memory_order_acquire) >= value) ++next;
    return next == memory_.world();
  });
}

Status Stream::all_reduce(const Request& request, const WaitFor& wait_for) {
  const std::size_t element = size_of(request.type);
  const std::size_t step = piece_bytes_ / element;
  RankState& mine = memory_.state(memory_.rank());
  for (std::size_t begin = 0; begin < request.count; begin += step) {
    const std::size_t count = std::min(step, request.count - begin);
    const auto* input = static_cast<const std::byte*>(request.input.data) + begin * element;
    copy_to_readers(memory_.stream_piece(memory_.rank(), pieces_), input, count * element);
    mine.laid_out.store(pieces_ + 1, std::memory_order_seq_cst);
    waiting_.notify(true);
    LOCKSTEP_RETURN_IF_ERROR(everyone(&RankState::laid_out, pieces_ + 1, wait_for));
    if (memory_.world() <= 2) {
      reduce_whole(request, begin, count);
    } else {
      reduce_slice(request, count);
      mine.reduced.store(pieces_ + 1, std::memory_order_seq_cst);
      waiting_.notify(true);
      LOCKSTEP_RETURN_IF_ERROR(everyone(&RankState::reduced, pieces_ + 1, wait_for));
      collect_slices(request, begin, count);
    }
    ++pieces_;
  }
  return {};
}

void Stream::reduce_whole(const Request& request, std::size_t begin, std::size_t count) {
  const std::size_t offset = begin * size_of(request.type);
  std::vector<const std::byte*> inputs;
  for (int rank = 0; rank < memory_.world(); ++rank) {
    const bool mine = rank == memory_.rank();
    inputs.push_back(mine ? static_cast<const std::byte*>(request.input.data) + offset
                          : memory_.stream_piece(rank, pieces_));
  }
  std::byte* const output = static_cast<std::byte*>(request.output.data) + offset;
  reduce({request.type, request.op, request.factor}, inputs, std::span(&output, 1), count);
}

std::size_t Stream::slice_begin(std::size_t count, std::size_t element, int rank) const {
  const std::size_t line = std::max<std::size_t>(1, kLine / element);
  const std::size_t share = (count / memory_.world() / line + 1) * line;
  return std::min(count, rank * share);
}

void Stream::reduce_slice(const Request& request, std::size_t count) {
  const std::size_t element = size_of(request.type);
  const std::size_t begin = slice_begin(count, element, memory_.rank());
  const std::size_t end = slice_begin(count, element, memory_.rank() + 1);
  if (begin == end) return;
  std::vector<const std::byte*> inputs;
  for (int rank = 0; rank < memory_.world(); ++rank)
    inputs.push_back(memory_.stream_piece(rank, pieces_) + begin * element);
  std::byte* const output = memory_.stream_piece(memory_.rank(), pieces_) + begin * element;
  reduce({request.type, request.op, request.factor}, inputs, std::span(&output, 1), end - begin);
}

void Stream::collect_slices(const Request& request, std::size_t begin, std::size_t count) {
  const std::size_t element = size_of(request.type);
  auto* output = static_cast<std::byte*>(request.output.data) + begin * element;
  for (int rank = 0; rank < memory_.world(); ++rank) {
    const std::size_t from = slice_begin(count, element, rank) * element;
    const std::size_t to = slice_begin(count, element, rank + 1) * element;
    copy_cached(output + from, memory_.stream_piece(rank, pieces_) + from, to - from);
  }
}

}  // namespace lockstep::comm
