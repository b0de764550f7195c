#include "small_call.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/fault_point.h"
#include "lockstep/reduce/reduce.h"
#include "reduce/copy.h"
#include "shm/mapping.h"

namespace lockstep::comm {
namespace {

// From this size on it matters how inputs are copied into control memory.
constexpr std::size_t kJudgedCallBytes = 4096;

void copy(const Piece& to, const std::byte* from) {
  if (to.data != from && to.bytes > 0) copy_cached(to.data, from, to.bytes);
}

}  // namespace

SmallCall::SmallCall(const GroupMemory& memory, const RequestView& request) : memory_(memory), request_(request) {
  const std::optional<std::size_t> piece = even_piece(request);
  if (!piece) return;
  piece_ = *piece;
  const bool receives_only = request.kind == Kind::kBroadcast || request.kind == Kind::kScatter;
  inputs_ = !request.inputs.empty() ? request.inputs.size() : !receives_only || memory.rank() == request.root;
  const std::size_t total = inputs_ * inline_stride(piece_, false);
  bytes_ = std::max(total, piece_);
  const auto shared = [&](const auto& buffer) { return memory.arena().contains(buffer.data, buffer.bytes); };
  if (request.kind == Kind::kAllReduce) {
    fits_ = total <= Communicator::kInlineBytes;
    if (!fits_ && memory.size() <= kMostInlineRanks) {
      fits_ = total <= kMostInlineBytes && !(shared(request.input) && shared(request.output));
      needs_all_inlined_ = true;
    }
  } else {
    const bool all_shared =
        inputs_ > 0 && shared(request.input) && std::all_of(request.inputs.begin(), request.inputs.end(), shared);
    fits_ = bytes_ <= (all_shared ? kMostInlineSharedBytes : kMostInlineBytes);
  }
}

bool SmallCall::run(const Waiting& waiting, std::uint64_t sequence, SmallCallCache& cache) {
  // For smaller inputs both ways cost the same, and reading the clock would cost more.
  const bool judged = bytes_ >= kJudgedCallBytes;
  const CopyWay way = judged ? cache.ways.way(request_) : CopyWay::kPlain;
  const bool large = bytes_ > Communicator::kInlineBytes;
  if (large && !std::exchange(cache.payloads_touched, true)) populate(memory_.large_payloads());
  const auto started = judged ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  post(waiting, sequence, way);
  bool agreed = true;
  int rank = 0;
  for (int spin = 0; rank < memory_.size() && spin <= waiting.spins();) {
    const Post& theirs = memory_.post(rank, sequence);
    if (theirs.state.load(std::memory_order_acquire) < 2 * sequence) {
      ++spin;
      waiting.relax();
      continue;
    }
    agreed = agreed && agrees(theirs);
    ++rank;
  }
  if (rank < memory_.size() || !agreed) return false;
  fetch(cache.scratch);
  if (judged) cache.ways.record(request_, started, bytes_);
  return true;
}

void SmallCall::post(const Waiting& waiting, std::uint64_t sequence, CopyWay way) {
  sequence_ = sequence;
  const int me = memory_.rank();
  Post& post = memory_.post(me, sequence);
  mine_ = &post;
  const std::size_t dense = inputs_ * piece_;
  const bool tiny = dense > 0 && dense <= Post::kTinyBytes;
  post.kind = request_.kind;
  post.type = request_.type;
  post.op = request_.op;
  post.flags = kBlocking | kPrivateOutput | kInlined | (tiny ? kTiny : 0) | (needs_all_inlined_ ? kUnstaged : 0);
  post.root = static_cast<std::uint16_t>(request_.root);
  post.list = static_cast<std::uint16_t>(request_.list);
  post.count = has_lists(request_.kind) ? piece_ : request_.count;
  post.factor = request_.factor;
  std::byte* const place = tiny ? post.tiny() : memory_.payload(me, sequence, inputs_ * inline_stride(piece_, false));
  copy_inputs(place, tiny, way);
  post.input = dense > 0 ? memory_.address_in_control(place) : kNowhere;
  post.output = kNowhere;
  if (!tiny) {
    post.input_bytes = request_.input.bytes;
    post.output_bytes = request_.output.bytes;
  }
  // Collective needs these if the ranks do not agree.
  PieceEntry* const table = memory_.pieces(me, sequence);
  for (std::size_t i = 0; i < request_.inputs.size(); ++i) {
    table[i].input = dense > 0 ? memory_.address_in_control(place + i * inline_stride(piece_, tiny)) : kNowhere;
    table[i].input_bytes = piece_;
  }
  for (std::size_t i = 0; i < request_.outputs.size(); ++i) {
    table[i].output = kNowhere;
    table[i].output_bytes = piece_;
  }
  memory_.set_call_place(sequence, request_.place);
  memory_.state(me).current.store(call_word(sequence, request_.kind), std::memory_order_release);
  LOCKSTEP_FAULT_POINT("small: written");
  post.state.store(2 * sequence + (needs_all_inlined_ ? 0 : 1), std::memory_order_seq_cst);
  LOCKSTEP_FAULT_POINT("small: posted");
  waiting.notify(true);
}

void SmallCall::copy_inputs(std::byte* place, bool tiny, CopyWay way) const {
  if (inputs_ == 0 || piece_ == 0) return;
  const auto put = [&](std::byte* to, const ConstPiece& piece) {
    way == CopyWay::kPlain ? copy_cached(to, piece.data, piece_) : copy_to_readers(to, piece.data, piece_);
  };
  if (request_.inputs.empty()) return put(place, request_.input);
  for (std::size_t i = 0; i < request_.inputs.size(); ++i) {
    put(place + i * inline_stride(piece_, tiny), request_.inputs[i]);
  }
}

bool SmallCall::agrees(const Post& theirs) const {
  return (theirs.flags & kInlined) != 0 && theirs.kind == mine_->kind && theirs.count == mine_->count &&
         theirs.type == mine_->type && theirs.op == mine_->op && theirs.root == mine_->root &&
         theirs.list == mine_->list && same_factor(theirs.factor, mine_->factor);
}

std::byte* SmallCall::piece_of(int from, int to) const {
  const Post& post = memory_.post(from, sequence_);
  const std::size_t stride = lists_inputs(request_.kind) ? inline_stride(piece_, (post.flags & kTiny) != 0) : 0;
  return memory_.resolve(from, post.input) + to * stride;
}

void SmallCall::reduce_into(void* output, int to, Scratch& scratch) const {
  scratch.inputs.clear();
  for (int from = 0; from < memory_.size(); ++from) scratch.inputs.push_back(piece_of(from, to));
  auto* const result = static_cast<std::byte*>(output);
  reduce({request_.type, request_.op, request_.factor}, scratch.inputs, std::span(&result, 1),
         piece_ / size_of(request_.type));
}

void SmallCall::fetch(Scratch& scratch) const {
  LOCKSTEP_FAULT_POINT("small: fetch");
  if (piece_ == 0) return;
  const int me = memory_.rank();
  switch (request_.kind) {
    case Kind::kAllReduce:
    case Kind::kReduceScatter: return reduce_into(request_.output.data, me, scratch);
    case Kind::kReduce:
      if (me == request_.root) reduce_into(request_.output.data, me, scratch);
      return;
    case Kind::kBroadcast:
    case Kind::kScatter:
      if (request_.output.bytes > 0) copy(request_.output, piece_of(request_.root, me));
      return;
    default:
      for (std::size_t from = 0; from < request_.outputs.size(); ++from) {
        copy(request_.outputs[from], piece_of(static_cast<int>(from), me));
      }
  }
}

}  // namespace lockstep::comm
