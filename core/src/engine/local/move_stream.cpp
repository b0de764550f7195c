#include <algorithm>
#include <chrono>

#include "base/fault_point.h"
#include "lockstep/reduce/reduce.h"
#include "reduce/copy.h"
#include "streams.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Small enough that data which is copied twice is still in the second-level cache; large enough that a meeting costs
// little.
constexpr std::size_t kLargestChunk = std::size_t{128} << 10;
constexpr std::size_t kSmallestChunk = std::size_t{16} << 10;

// The way of copying is judged each time that this many bytes have passed.
constexpr std::size_t kJudgedBytes = std::size_t{512} << 10;

bool reduces(Kind kind) {
  return kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

}  // namespace

// For how many ranks a rank lays out data in each chunk; 1 if all get the same.
std::size_t MoveStream::receivers(Kind kind) const {
  return lists_inputs(kind) ? std::max<std::size_t>(1, memory_.size() - 1) : 1;
}

std::size_t MoveStream::longest(const Job& job) const {
  std::size_t most = 0;
  for (int from = 0; from < memory_.size(); ++from) {
    for (int to = 0; to < memory_.size(); ++to) most = std::max(most, job.plan.sent_bytes(from, to));
  }
  return most;
}

// At least a few chunks, so that the ranks overlap. With more ranks than cores they do not overlap, and each meeting
// costs switches of the cores: then chunks are as large as possible.
std::size_t MoveStream::chunk_bytes(Kind kind, std::size_t longest) const {
  const std::size_t room = stream_chunk_bytes(memory_.size()) / receivers(kind) / kLine * kLine;
  if (waiting_.crowded()) return room;
  const std::size_t most = std::max(kSmallestChunk, kLargestChunk / receivers(kind) / kLine * kLine);
  return std::min(room, std::clamp(longest / 4 / kLine * kLine, kSmallestChunk, most));
}

Status MoveStream::run(const Request& request, std::uint64_t sequence, const WaitFor& wait_for) {
  Job job{request, Plan(memory_, sequence)};
  job.stages = (memory_.post(memory_.rank(), sequence).flags & kUnstaged) != 0;
  job.large_results = job.plan.large_results();

  const std::size_t end = longest(job);
  const std::size_t bytes = chunk_bytes(request.kind, end);
  Clock::time_point started = Clock::now();
  std::size_t judged = 0;
  for (std::size_t begin = 0; begin < end; begin += bytes) {
    way_ = ways_.way(request);
    LOCKSTEP_RETURN_IF_ERROR(pass(job, {begin, bytes}, wait_for));
    judged += std::min(bytes, end - begin);
    if (judged < kJudgedBytes && begin + bytes < end) continue;
    ways_.record(request, started, judged);
    started = Clock::now();
    judged = 0;
  }
  // An empty chunk: a rank that has laid it out has read everything.
  LOCKSTEP_RETURN_IF_ERROR(ring_.begin_chunk(0, StagingRing::Use::kReads, wait_for));
  ring_.announce();
  return job.stages ? Status() : ring_.wait_for_everyone(wait_for);
}

Status MoveStream::pass(const Job& job, Chunk chunk, const WaitFor& wait_for) {
  const Kind kind = job.request.kind;
  const auto use = job.stages ? StagingRing::Use::kWrites : StagingRing::Use::kReads;
  LOCKSTEP_RETURN_IF_ERROR(ring_.begin_chunk(receivers(kind) * chunk.bytes, use, wait_for));
  if (job.stages) lay_out(job, chunk);
  ring_.announce();
  return reduces(kind) ? reduce_all(job, chunk, wait_for) : fetch_all(job, chunk, wait_for);
}

// The place where `from` lays out data for `to`.
std::byte* MoveStream::staged_at(int from, int to, Kind kind, Chunk chunk) const {
  const int index = !lists_inputs(kind) ? 0 : to < from ? to : to - 1;
  return ring_.of(from) + index * chunk.bytes;
}

void MoveStream::lay_out(const Job& job, Chunk chunk) const {
  const int me = memory_.rank();
  const auto stage = [&](int to, const ConstPiece& piece) {
    if (piece.bytes <= chunk.begin) return;
    const auto* const from = static_cast<const std::byte*>(piece.data) + chunk.begin;
    const std::size_t bytes = std::min(chunk.bytes, piece.bytes - chunk.begin);
    std::byte* const place = staged_at(me, to, job.request.kind, chunk);
    way_ == CopyWay::kPlain ? copy_cached(place, from, bytes) : copy_to_readers(place, from, bytes);
  };
  if (!lists_inputs(job.request.kind)) return stage(me, job.request.input);
  for (int to = 0; to < memory_.size(); ++to) {
    if (to != me) stage(to, job.request.inputs[to]);
  }
}

const std::byte* MoveStream::source(const Job& job, Chunk chunk, int from) const {
  const int me = memory_.rank();
  const Request& request = job.request;
  if (from == me) {
    const ConstPiece& own = lists_inputs(request.kind) ? request.inputs[me] : request.input;
    return static_cast<const std::byte*>(own.data) + chunk.begin;
  }
  const std::byte* const shared = job.plan.sent(from, me).data;
  return shared != nullptr ? shared + chunk.begin : staged_at(from, me, request.kind, chunk);
}

Status MoveStream::fetch_all(const Job& job, Chunk chunk, const WaitFor& wait_for) {
  const int me = memory_.rank();
  for (int step = 0; step < memory_.size(); ++step) {
    const int from = (me + step) % memory_.size();
    if (job.plan.sent_bytes(from, me) <= chunk.begin) continue;
    if (from != me) LOCKSTEP_RETURN_IF_ERROR(ring_.wait_for_rank(from, wait_for));
    fetch(job, chunk, from);
  }
  return {};
}

void MoveStream::fetch(const Job& job, Chunk chunk, int from) const {
  const Piece& whole = lists_outputs(job.request.kind) ? job.request.outputs[from] : job.request.output;
  auto* const to = static_cast<std::byte*>(whole.data) + chunk.begin;
  const std::byte* const data = source(job, chunk, from);
  const std::size_t bytes = std::min(chunk.bytes, whole.bytes - chunk.begin);
  LOCKSTEP_FAULT_POINT("stream: fetch");
  if (to == data) return;
  job.large_results ? copy_past_caches(to, data, bytes) : copy_cached(to, data, bytes);
}

Status MoveStream::reduce_all(const Job& job, Chunk chunk, const WaitFor& wait_for) {
  const Request& request = job.request;
  if (request.output.bytes <= chunk.begin) return {};
  inputs_.clear();
  for (int from = 0; from < memory_.size(); ++from) {
    if (from != memory_.rank()) LOCKSTEP_RETURN_IF_ERROR(ring_.wait_for_rank(from, wait_for));
    inputs_.push_back(source(job, chunk, from));
  }
  auto* const result = static_cast<std::byte*>(request.output.data) + chunk.begin;
  const std::size_t bytes = std::min(chunk.bytes, request.output.bytes - chunk.begin);
  const Reduction reduction{request.type, request.op, request.factor};
  const std::size_t count = bytes / size_of(request.type);
  job.large_results ? reduce_past_caches(reduction, inputs_, result, count)
                    : reduce(reduction, inputs_, std::span(&result, 1), count);
  return {};
}

}  // namespace lockstep::comm
