#include "collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/fault_point.h"
#include "plan.h"
#include "reduce/copy.h"
#include "small_call.h"

namespace lockstep::comm {
namespace {

std::size_t padded(std::size_t bytes) {
  return inline_stride(bytes, /*tiny=*/false);
}

template <typename P>
std::size_t padded_total(const P& single, const std::vector<P>& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), padded(single.bytes),
                         [](std::size_t sum, const P& piece) { return sum + padded(piece.bytes); });
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from) copy_cached(to, from, bytes);
}

bool claim(Counter& counter, std::uint64_t sequence, std::uint64_t tickets, std::uint64_t& ticket) {
  std::uint64_t word = counter.word.load(std::memory_order_relaxed);
  for (;;) {
    ticket = (word >> kTicketBits) == sequence ? (word & kTicketMask) : 0;
    if (ticket >= tickets) return false;
    if (counter.word.compare_exchange_weak(word, (sequence << kTicketBits) | (ticket + 1), std::memory_order_acq_rel))
      return true;
  }
}

}  // namespace

Status Collective::post() {
  phase_ = Phase::kPosted;
  Post& post = memory_.post(memory_.rank(), sequence_);
  post.kind = request_.kind;
  post.type = request_.type;
  post.op = request_.op;
  post.flags = caller_ == Caller::kBlocks ? kBlocking : 0;
  post.root = static_cast<std::uint16_t>(request_.root);
  post.list = static_cast<std::uint16_t>(request_.list);
  post.count = request_.count;
  post.factor = request_.factor;
  LOCKSTEP_FAULT_POINT("post: called");
  memory_.set_call_place(sequence_, request_.place);
  memory_.state(memory_.rank()).current.store(call_word(sequence_, request_.kind), std::memory_order_release);
  // If this fails, the post is not published half written: the others learn of the failure by the abort that follows.
  LOCKSTEP_RETURN_IF_ERROR(publish(post));
  const bool ready = (post.flags & kUnstaged) == 0;
  LOCKSTEP_FAULT_POINT("post: written");
  post.state.store(2 * sequence_ + (ready ? 1 : 0), std::memory_order_seq_cst);
  LOCKSTEP_FAULT_POINT("post: stored");
  waiting_.notify(true);
  return {};
}

void Collective::adopt_small() {
  phase_ = Phase::kPosted;
  private_output_ = request_.output.bytes > 0 || !request_.outputs.empty();
}

Status Collective::publish(Post& post) {
  if (reduces_in_place() && !Plan::is_one_shot(request_.kind, request_.input.bytes)) {
    const bool shared =
        in_arena(request_.input.data, request_.input.bytes) && in_arena(request_.output.data, request_.output.bytes);
    if (!shared && caller_ == Caller::kBlocks) {
      post.flags |= kUnstaged;
      return {};
    }
    return publish_in_place(post);
  }
  publish_input_sizes(post);
  if (may_stream()) {
    post.flags |= kUnstaged;
  } else {
    LOCKSTEP_RETURN_IF_ERROR(publish_inputs(post));
  }
  return publish_outputs(post);
}

bool Collective::inputs_shared() const {
  const auto shared = [&](const ConstPiece& piece) { return in_arena(piece.data, piece.bytes); };
  return shared(request_.input) && std::all_of(request_.inputs.begin(), request_.inputs.end(), shared);
}

bool Collective::may_stream() const {
  return caller_ == Caller::kBlocks && memory_.size() > 1 &&
         padded_total(request_.input, request_.inputs) > kMostInlineBytes && !inputs_shared();
}

void Collective::publish_input_sizes(Post& post) {
  post.input = kNowhere;
  post.input_bytes = request_.input.bytes;
  PieceEntry* table = memory_.pieces(memory_.rank(), sequence_);
  for (std::size_t i = 0; i < request_.inputs.size(); ++i) {
    table[i].input = kNowhere;
    table[i].input_bytes = request_.inputs[i].bytes;
  }
}

// For an all-reduce that is too large to inline: a private buffer is copied to the place of the result, and reduced
// there.
Status Collective::publish_in_place(Post& post) {
  needs_all_ = true;
  private_output_ = false;
  const std::size_t bytes = request_.input.bytes;
  const bool output_shared = outputs_shared();
  if (output_shared && in_arena(request_.input.data, bytes)) {
    post.input = memory_.address_in_arena(request_.input.data);
    post.output = memory_.address_in_arena(request_.output.data);
    return {};
  }
  std::byte* place = static_cast<std::byte*>(request_.output.data);
  if (!output_shared) {
    LOCKSTEP_RETURN_IF_ERROR(output_staging_.allocate(memory_.shared_arena(), bytes));
    place = output_staging_.data();
  }
  copy(place, request_.input.data, bytes);
  post.input = post.output = memory_.address_in_arena(place);
  return {};
}

Status Collective::publish_inputs(Post& post) {
  const std::size_t total = padded_total(request_.input, request_.inputs);
  const bool direct = total > kMostInlineSharedBytes && inputs_shared();
  const bool inlined = !direct && total <= kMostInlineBytes;
  if (!inlined) needs_all_ = true;
  if (const std::optional<std::size_t> piece = even_piece(request_); inlined && piece) {
    post.flags |= kInlined;
    if (has_lists(request_.kind)) post.count = *piece;
  }

  std::byte* place = nullptr;
  if (inlined) {
    place = memory_.payload(memory_.rank(), sequence_, total);
  } else if (!direct) {
    LOCKSTEP_RETURN_IF_ERROR(input_staging_.allocate(memory_.shared_arena(), total));
    place = input_staging_.data();
  }
  const auto put = [&](const ConstPiece& piece) -> Address {
    if (piece.bytes == 0) return kNowhere;
    if (direct) return memory_.address_in_arena(piece.data);
    std::byte* at = place;
    copy_to_readers(at, piece.data, piece.bytes);
    place += padded(piece.bytes);
    return inlined ? memory_.address_in_control(at) : memory_.address_in_arena(at);
  };
  // For an inlined list: the place of its first piece.
  if ((post.flags & kInlined) != 0) post.input = memory_.address_in_control(place);
  if (request_.input.bytes > 0) post.input = put(request_.input);
  PieceEntry* table = memory_.pieces(memory_.rank(), sequence_);
  for (std::size_t i = 0; i < request_.inputs.size(); ++i) table[i].input = put(request_.inputs[i]);
  return {};
}

bool Collective::outputs_shared() const {
  const auto shared = [&](const Piece& piece) { return in_arena(piece.data, piece.bytes); };
  return shared(request_.output) && std::all_of(request_.outputs.begin(), request_.outputs.end(), shared);
}

Status Collective::publish_outputs(Post& post) {
  const std::size_t total = padded_total(request_.output, request_.outputs);
  const bool direct = outputs_shared();
  // If every rank makes its own result, no other rank writes this rank's output.
  const bool own_work =
      Plan::is_one_shot(request_.kind, request_.input.bytes) || Plan::is_fetched(request_.kind, total);
  // A rank that blocks or tests fetches its result itself. If this rank goes on, the ranks whose inputs it needs must
  // be able to finish without it.
  private_output_ = own_work || (!direct && caller_ != Caller::kGoesOn);
  const bool staged = !private_output_ && !direct;
  if (private_output_) post.flags |= kPrivateOutput;
  if (!private_output_ && total > 0) needs_all_ = true;

  std::byte* place = nullptr;
  if (staged) {
    LOCKSTEP_RETURN_IF_ERROR(output_staging_.allocate(memory_.shared_arena(), total));
    place = output_staging_.data();
  }
  const auto put = [&](const Piece& piece) -> Address {
    if (piece.bytes == 0 || private_output_) return kNowhere;
    if (!staged) return memory_.address_in_arena(piece.data);
    return memory_.address_in_arena(std::exchange(place, place + padded(piece.bytes)));
  };
  post.output = put(request_.output);
  post.output_bytes = request_.output.bytes;
  PieceEntry* table = memory_.pieces(memory_.rank(), sequence_);
  for (std::size_t i = 0; i < request_.outputs.size(); ++i) {
    table[i].output = put(request_.outputs[i]);
    table[i].output_bytes = request_.outputs[i].bytes;
  }
  return {};
}

void Collective::copy_outputs() {
  const std::byte* from = output_staging_.data();
  if (from == nullptr) return;
  LOCKSTEP_FAULT_POINT("copy out");
  copy(request_.output.data, from, request_.output.bytes);
  from += padded(request_.output.bytes);
  for (const Piece& piece : request_.outputs) {
    copy(piece.data, from, piece.bytes);
    from += padded(piece.bytes);
  }
}

bool Collective::everyone_posted() {
  for (; checked_ < memory_.size(); ++checked_) {
    if (memory_.post(checked_, sequence_).state.load(std::memory_order_acquire) / 2 != sequence_) {
      missing_.store(checked_, std::memory_order_relaxed);
      return false;
    }
  }
  missing_.store(-1, std::memory_order_relaxed);
  return true;
}

bool Collective::everyone_ready() {
  for (; ready_ < memory_.size(); ++ready_) {
    if (memory_.post(ready_, sequence_).state.load(std::memory_order_acquire) != 2 * sequence_ + 1) return false;
  }
  return true;
}

bool Collective::progress(bool help, Scratch& scratch) {
  if (phase_ == Phase::kPosted) {
    if (!everyone_posted()) return false;
    const Plan plan(memory_, sequence_);
    if (Status agreed = plan.agreement(); !agreed.ok()) {
      if (!plan.lists_agree()) waiting_.abort(agreed.code(), agreed.message());
      finish(std::move(agreed));
      return true;
    }
    bool unstaged = false;
    bool all_blocking = true;
    for (int rank = 0; rank < memory_.size(); ++rank) {
      const std::uint8_t flags = memory_.post(rank, sequence_).flags;
      unstaged = unstaged || (flags & kUnstaged) != 0;
      all_blocking = all_blocking && (flags & kBlocking) != 0;
    }
    phase_ = unstaged && all_blocking && !plan.inlined() ? Phase::kStream : Phase::kStaging;
    Status prepared = phase_ == Phase::kStaging ? stage_late() : Plan(memory_, sequence_).reach();
    if (!prepared.ok()) return break_group(prepared);
  }
  if (phase_ == Phase::kStaging) {
    const Plan plan(memory_, sequence_);
    if (!plan.inlined() && !everyone_ready()) return false;
    if (const Status reached = plan.reach(); !reached.ok()) return break_group(reached);
    start_running();
  }
  if (phase_ == Phase::kRunning) run_tickets(help, scratch);
  return phase_ == Phase::kOver;
}

// This rank cannot do its part, which all others need. True: the operation is over.
bool Collective::break_group(const Status& why) {
  Status status = why.with_context(fmt::format("{} cannot take part in {} #{}", memory_.roster().name(memory_.rank()),
                                               to_string(request_.kind), sequence_));
  waiting_.abort(status.code(), status.message());
  finish(std::move(status));
  return true;
}

// Some rank does not block, so no rank can stream. The ranks that meant to stream now copy everything at once.
Status Collective::stage_late() {
  Post& post = memory_.post(memory_.rank(), sequence_);
  if ((post.flags & kUnstaged) == 0 || Plan(memory_, sequence_).inlined()) return {};
  LOCKSTEP_RETURN_IF_ERROR(reduces_in_place() ? publish_in_place(post) : publish_inputs(post));
  LOCKSTEP_FAULT_POINT("post: staged late");
  post.state.store(2 * sequence_ + 1, std::memory_order_seq_cst);
  waiting_.notify(true);
  return {};
}

void Collective::start_running() {
  phase_ = Phase::kRunning;
  const Plan plan(memory_, sequence_);
  if (plan.inlined()) needs_all_ = false;
  large_results_ = plan.large_results();
  for (int rank = 0; rank < memory_.size(); ++rank) total_tickets_ += plan.tickets(rank);
}

void Collective::run_tickets(bool help, Scratch& scratch) {
  if (!all_claimed_) work(help, scratch);
  if (!needs_all_ || tickets_done() == total_tickets_) finish(waiting_.broken_by_now());
}

void Collective::work(bool help, Scratch& scratch) {
  const Plan plan(memory_, sequence_);
  const int me = memory_.rank();
  const Outputs outputs{private_output_ ? &request_ : nullptr, large_results_};
  Counter& mine = memory_.done(me, sequence_);
  const std::uint64_t before = my_done_;
  const auto run = [&](int owner) {
    const std::uint64_t tickets = plan.tickets(owner);
    Counter& counter = memory_.claim(owner, sequence_);
    if (count_of(counter, sequence_) >= tickets) return;
    mine.inside.store(sequence_, std::memory_order_relaxed);  // claim() orders it
    for (std::uint64_t ticket; !waiting_.aborted() && claim(counter, sequence_, tickets, ticket); ++my_done_) {
      LOCKSTEP_FAULT_POINT("ticket: claimed");
      // Checked again: this rank may have been frozen since, while the others have left the operation.
      if (!waiting_.aborted()) plan.execute(owner, ticket, outputs, scratch);
    }
  };
  const auto publish_done = [&] {
    LOCKSTEP_FAULT_POINT("ticket: done");
    mine.word.store((sequence_ << kTicketBits) | my_done_, std::memory_order_seq_cst);
    LOCKSTEP_FAULT_POINT("ticket: counted");
  };

  run(me);  // also tickets that only this rank can do: then counts of claims and of finished tickets stay comparable
  if (my_done_ != before) publish_done();
  if (help) {
    const std::uint64_t own = my_done_;
    for (int step = 1; step < memory_.size(); ++step) {
      const int owner = (me + step) % memory_.size();
      if (plan.shared(owner)) run(owner);
    }
    if (my_done_ != own) publish_done();
    all_claimed_ = !waiting_.aborted();
  }
  if (mine.inside.load(std::memory_order_relaxed) != 0) mine.inside.store(0, std::memory_order_release);
  if (my_done_ != before) waiting_.notify(false);
}

std::uint64_t Collective::tickets_done() const {
  std::uint64_t sum = 0;
  for (int rank = 0; rank < memory_.size(); ++rank) sum += count_of(memory_.done(rank, sequence_), sequence_);
  return sum;
}

void Collective::finish(Status status) {
  status_ = std::move(status);
  if (status_.ok()) copy_outputs();
  input_staging_ = ArenaBlock();
  output_staging_ = ArenaBlock();
  phase_ = Phase::kOver;
}

}  // namespace lockstep::comm
