#include <algorithm>
#include <array>
#include <chrono>

#include "base/arithmetic.h"
#include "base/fault_point.h"
#include "lockstep/reduce/reduce.h"
#include "reduce/copy.h"
#include "streams.h"

namespace lockstep::comm {
namespace {

// Three chunks are larger than a second-level cache, as they must be (see streams.h). With more than two ranks a
// chunk is larger, because each costs two meetings.
constexpr std::size_t kChunkBytes = std::size_t{512} << 10;
constexpr std::size_t kChunkBytesManyRanks = std::size_t{1} << 20;

// Below this size the root alone is faster with a reduce.
constexpr std::size_t kSharedReduceBytes = std::size_t{256} << 10;

// Adds up the times between start (or construction) and stop.
class Stopwatch {
 public:
  void start() { start_ = Clock::now(); }
  void stop() { total_ += Clock::now() - start_; }
  double nanoseconds() const { return std::chrono::duration<double, std::nano>(total_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  Clock::duration total_{};
};

}  // namespace

std::size_t stream_chunk_bytes(int group_size) {
  return group_size > 2 ? kChunkBytesManyRanks : kChunkBytes;
}

ReduceStream::ReduceStream(const GroupMemory& memory, const Waiting& waiting, StagingRing& ring)
    : memory_(memory), waiting_(waiting), ring_(ring) {}

bool ReduceStream::suits(const Request& request) {
  return request.kind == Kind::kAllReduce ||
         (request.kind == Kind::kReduce && request.input.bytes >= kSharedReduceBytes);
}

bool ReduceStream::receives(const Request& request) const {
  return request.kind == Kind::kAllReduce || memory_.rank() == request.root;
}

Status ReduceStream::run(const Request& request, const WaitFor& wait_for) {
  const std::size_t element = size_of(request.type);
  const std::size_t step = stream_chunk_bytes(memory_.size()) / element;
  for (std::size_t end = request.count; end > 0;) {
    const std::size_t count = std::min(step, end);
    end -= count;
    LOCKSTEP_RETURN_IF_ERROR(ring_.begin_chunk(count * element, StagingRing::Use::kWrites, wait_for));
    LOCKSTEP_RETURN_IF_ERROR(pass_chunk(request, end, count, wait_for));
  }
  return {};
}

Status ReduceStream::pass_chunk(const Request& request, std::size_t begin, std::size_t count, const WaitFor& wait_for) {
  RankState& mine = memory_.state(memory_.rank());
  // Ranks may see a change one chunk apart, which does no harm.
  way_ = static_cast<CopyWay>(memory_.state(0).copy_way.load(std::memory_order_relaxed));
  Stopwatch watch;
  lay_out(request, begin, count);
  ring_.announce();
  watch.stop();
  LOCKSTEP_RETURN_IF_ERROR(ring_.wait_for_everyone(wait_for));
  watch.start();
  reduce_slice(request, begin, count);
  LOCKSTEP_FAULT_POINT("stream: reduced");
  mine.reduced.store(ring_.number(), std::memory_order_seq_cst);
  watch.stop();
  waiting_.notify(true);
  LOCKSTEP_RETURN_IF_ERROR(ring_.wait_until_reduced(wait_for));
  watch.start();
  LOCKSTEP_FAULT_POINT("stream: collect");
  if (receives(request)) collect_slices(request, begin, count);
  watch.stop();
  if (memory_.rank() == 0) {
    choice_.record(watch.nanoseconds() / static_cast<double>(count * size_of(request.type)));
    mine.copy_way.store(static_cast<std::uint32_t>(choice_.way()), std::memory_order_relaxed);
  }
  return {};
}

void ReduceStream::lay_out(const Request& request, std::size_t begin, std::size_t count) {
  const std::size_t element = size_of(request.type);
  const auto* input = static_cast<const std::byte*>(request.input.data) + begin * element;
  const std::size_t from = slice_begin(count, element, memory_.rank()) * element;
  const std::size_t to = slice_begin(count, element, memory_.rank() + 1) * element;
  std::byte* const place = ring_.of(memory_.rank());
  stage(place, input, from);
  stage(place + to, input + to, count * element - to);
}

void ReduceStream::stage(std::byte* to, const std::byte* from, std::size_t bytes) const {
  way_ == CopyWay::kPlain ? copy_cached(to, from, bytes) : copy_to_readers(to, from, bytes);
}

std::size_t ReduceStream::slice_begin(std::size_t count, std::size_t element, int rank) const {
  const std::size_t line = std::max<std::size_t>(1, kLine / element);
  const std::size_t share = ceil_divide(ceil_divide(count, line), static_cast<std::size_t>(memory_.size())) * line;
  return std::min(count, rank * share);
}

// Finds element `from` of the chunk that begins at `begin`: in this rank's buffer, and in the others' staging.
void ReduceStream::gather_inputs(const Request& request, std::size_t begin, std::size_t from) {
  const std::size_t element = size_of(request.type);
  inputs_.clear();
  for (int rank = 0; rank < memory_.size(); ++rank) {
    inputs_.push_back(rank == memory_.rank()
                          ? static_cast<const std::byte*>(request.input.data) + (begin + from) * element
                          : ring_.of(rank) + from * element);
  }
}

// In an all-reduce the result also goes to staging.
void ReduceStream::reduce_slice(const Request& request, std::size_t begin, std::size_t count) {
  const std::size_t element = size_of(request.type);
  const Reduction reduction{request.type, request.op, request.factor};
  const std::size_t from = slice_begin(count, element, memory_.rank());
  const std::size_t elements = slice_begin(count, element, memory_.rank() + 1) - from;
  std::byte* const place = ring_.of(memory_.rank()) + from * element;
  gather_inputs(request, begin, from);
  if (!receives(request)) {
    way_ == CopyWay::kPlain ? reduce(reduction, inputs_, std::span(&place, 1), elements)
                            : reduce_past_caches(reduction, inputs_, place, elements);
    return;
  }
  std::byte* const result = static_cast<std::byte*>(request.output.data) + (begin + from) * element;
  if (request.kind == Kind::kAllReduce) return reduce_for_all(reduction, result, place, elements);
  reduce(reduction, inputs_, std::span(&result, 1), elements);
}

void ReduceStream::reduce_for_all(const Reduction& reduction, std::byte* result, std::byte* place,
                                  std::size_t elements) {
  if (way_ == CopyWay::kStreaming) return reduce_past_caches(reduction, inputs_, place, elements, result);
  const std::array outputs{result, place};
  reduce(reduction, inputs_, outputs, elements);
}

void ReduceStream::collect_slices(const Request& request, std::size_t begin, std::size_t count) const {
  const std::size_t element = size_of(request.type);
  auto* output = static_cast<std::byte*>(request.output.data) + begin * element;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (rank == memory_.rank()) continue;
    const std::size_t from = slice_begin(count, element, rank) * element;
    const std::size_t to = slice_begin(count, element, rank + 1) * element;
    copy_cached(output + from, ring_.of(rank) + from, to - from);
  }
}

}  // namespace lockstep::comm
