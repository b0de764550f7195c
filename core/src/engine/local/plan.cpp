#include "plan.h"

#include <algorithm>

#include "base/arithmetic.h"
#include "base/fault_point.h"
#include "engine/core/error_text.h"
#include "lockstep/reduce/reduce.h"
#include "reduce/copy.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kTicketBytes = std::size_t{64} << 10;
constexpr std::size_t kSmallestTicketBytes = std::size_t{16} << 10;

}  // namespace

Plan::Plan(const GroupMemory& memory, std::uint64_t sequence)
    : memory_(memory), sequence_(sequence), kind_(own().kind) {
  for (int rank = 0; rank < memory_.size(); ++rank) inlined_ = inlined_ && (post(rank).flags & kInlined) != 0;
}

bool Plan::lists_agree() const {
  for (int rank = 1; rank < memory_.size(); ++rank) {
    if (post(rank).list != post(0).list) return false;
  }
  return true;
}

Status Plan::agreement() const {
  const Post& first = post(0);
  bool agreed = first.kind != Kind::kRefusal;
  for (int rank = 1; rank < memory_.size() && agreed; ++rank) agreed = same_terms(post(rank), first);
  if (agreed) return check_sizes();

  std::vector<std::string> calls;
  calls.reserve(memory_.size());
  for (int rank = 0; rank < memory_.size(); ++rank) {
    const Post& theirs = post(rank);
    const std::string place = memory_.call_place(rank, sequence_);
    const bool refused = theirs.kind == Kind::kRefusal;
    calls.push_back(refused ? describe_refusal(memory_.resolve(rank, theirs.input), theirs.input_bytes, place)
                            : "called " + describe(terms_of(theirs), memory_.roster()) + place);
  }
  return disagreement({memory_.name(), memory_.roster()}, sequence_, calls);
}

Status Plan::check_sizes() const {
  if (kind_ == Kind::kAllReduce || kind_ == Kind::kReduce || kind_ == Kind::kBroadcast || kind_ == Kind::kBarrier)
    return {};
  for (int to = 0; to < memory_.size(); ++to) {
    for (int from = 0; from < memory_.size(); ++from) {
      const std::size_t sends = sent_bytes(from, to);
      const std::size_t wants = wanted_bytes(to, from);
      if (sends == wants) continue;
      return disagreement(
          {memory_.name(), memory_.roster()}, sequence_, kind_,
          {from, to, sends, wants, memory_.call_place(from, sequence_), memory_.call_place(to, sequence_)});
    }
  }
  return {};
}

Status Plan::reach() const {
  for (int rank = 0; rank < memory_.size(); ++rank) {
    const Post& its = post(rank);
    const bool in_control = (its.flags & kInlined) != 0 && (its.flags & kPrivateOutput) != 0;
    if (in_control && (its.flags & kUnstaged) == 0) continue;
    LOCKSTEP_RETURN_IF_ERROR(memory_.reach(rank, its.input));
    LOCKSTEP_RETURN_IF_ERROR(memory_.reach(rank, its.output));
    if (!has_lists(kind_)) continue;
    const PieceEntry* const table = memory_.pieces(rank, sequence_);
    for (int other = 0; other < memory_.size(); ++other) {
      if (lists_inputs(kind_)) LOCKSTEP_RETURN_IF_ERROR(memory_.reach(rank, table[other].input));
      if (lists_outputs(kind_)) LOCKSTEP_RETURN_IF_ERROR(memory_.reach(rank, table[other].output));
    }
  }
  return {};
}

// With a tiny input, sizes follow from the count.
std::size_t Plan::input_bytes(const Post& post) const {
  return (post.flags & kTiny) != 0 ? post.count * (has_lists(kind_) ? 1 : unit_of(kind_, post.type)) : post.input_bytes;
}

std::size_t Plan::output_bytes(const Post& post) const {
  return (post.flags & kTiny) != 0 ? post.count * (has_lists(kind_) ? 1 : unit_of(kind_, post.type))
                                   : post.output_bytes;
}

std::size_t Plan::sent_bytes(int from, int to) const {
  switch (kind_) {
    case Kind::kBroadcast: return from == own().root && to != from ? input_bytes(post(from)) : 0;
    case Kind::kAllGather: return input_bytes(post(from));
    case Kind::kReduce:
    case Kind::kGather: return to == own().root ? input_bytes(post(from)) : 0;
    case Kind::kScatter: return from == own().root ? memory_.pieces(from, sequence_)[to].input_bytes : 0;
    case Kind::kReduceScatter:
    case Kind::kAllToAll: return memory_.pieces(from, sequence_)[to].input_bytes;
    default: return 0;
  }
}

std::size_t Plan::wanted_bytes(int to, int from) const {
  switch (kind_) {
    case Kind::kBroadcast: return from == own().root && to != from ? output_bytes(post(to)) : 0;
    case Kind::kGather: return to == own().root ? memory_.pieces(to, sequence_)[from].output_bytes : 0;
    case Kind::kScatter: return from == own().root ? output_bytes(post(to)) : 0;
    case Kind::kReduceScatter: return output_bytes(post(to));
    case Kind::kAllGather:
    case Kind::kAllToAll: return memory_.pieces(to, sequence_)[from].output_bytes;
    default: return 0;
  }
}

Plan::Part Plan::sent(int from, int to) const {
  const std::size_t bytes = sent_bytes(from, to);
  if (bytes == 0) return {};
  const Address address = lists_inputs(kind_) ? memory_.pieces(from, sequence_)[to].input : post(from).input;
  return {address == kNowhere ? nullptr : memory_.resolve(from, address), bytes};
}

Plan::Part Plan::wanted(int to, int from) const {
  const std::size_t bytes = wanted_bytes(to, from);
  if (bytes == 0) return {};
  const Address address = lists_outputs(kind_) ? memory_.pieces(to, sequence_)[from].output : post(to).output;
  return {address == kNowhere ? nullptr : memory_.resolve(to, address), bytes};
}

Plan::Part Plan::wanted_at(int to, int from, const Outputs& outputs) const {
  Part part = wanted(to, from);
  if (to == memory_.rank() && outputs.own != nullptr && part.bytes > 0) {
    const bool listed = !outputs.own->outputs.empty();
    part.data = static_cast<std::byte*>(listed ? outputs.own->outputs[from].data : outputs.own->output.data);
  }
  return part;
}

// Not for all-reduce: its result goes to cache lines that have just been read.
bool Plan::large_results() const {
  if (kind_ == Kind::kAllReduce) return false;
  std::size_t sum = 0;
  if (kind_ == Kind::kReduce || kind_ == Kind::kReduceScatter) {
    for (int rank = 0; rank < memory_.size(); ++rank) sum += output_bytes(post(rank));
    return (kind_ == Kind::kReduce ? total_bytes() : sum) >= kLargeResults;
  }
  for (int to = 0; to < memory_.size(); ++to) {
    for (int from = 0; from < memory_.size(); ++from) sum += sent_bytes(from, to);
  }
  return sum >= kLargeResults;
}

// A whole number of cache lines, and therefore of elements.
std::size_t Plan::ticket_bytes() const {
  return std::clamp(2 * kTicketBytes / memory_.size(), kSmallestTicketBytes, kTicketBytes) / kLine * kLine;
}

bool Plan::shared(int owner) const {
  if (inlined_) return false;
  if (kind_ == Kind::kAllReduce) return true;
  const int writer = kind_ == Kind::kReduce ? own().root : owner;
  return (post(writer).flags & kPrivateOutput) == 0;
}

// Only its owner can write a private result.
int Plan::workers(int& first) const {
  first = kind_ == Kind::kReduce ? own().root : memory_.rank();
  if (!shared(first)) return 1;
  first = 0;
  return memory_.size();
}

// Tickets have equal sizes of whole cache lines, and each worker has the same number of them.
std::size_t Plan::ticket_elements(int workers) const {
  const std::size_t element = size_of(own().type);
  const std::size_t each = std::max<std::size_t>(1, ceil_divide(total_bytes(), workers * ticket_bytes()));
  const std::size_t line = std::max<std::size_t>(1, kLine / element);
  return std::max(line, ceil_divide(ceil_divide(own().count, workers * each), line) * line);
}

std::uint64_t Plan::tickets(int owner) const {
  if (kind_ == Kind::kAllReduce || kind_ == Kind::kReduce) {
    int first = 0;
    const int count = workers(first);
    if (count == 1 && kind_ == Kind::kReduce && owner != first) return 0;
    const std::uint64_t all = ceil_divide(own().count, ticket_elements(count));
    if (count == 1) return all;
    const std::uint64_t each = ceil_divide(all, count);
    return std::min(each, all - std::min(all, owner * each));
  }
  if (kind_ == Kind::kReduceScatter) return ceil_divide(output_bytes(post(owner)), ticket_bytes());
  std::uint64_t sum = 0;
  for (int from = 0; from < memory_.size(); ++from) sum += ceil_divide(wanted_bytes(owner, from), ticket_bytes());
  return sum;
}

void Plan::execute(int owner, std::uint64_t ticket, const Outputs& outputs, Scratch& scratch) const {
  LOCKSTEP_FAULT_POINT("ticket: begun");
  if (!reduces()) return execute_move(owner, ticket, outputs);
  if (kind_ == Kind::kReduceScatter) return execute_reduce_scatter(owner, ticket, outputs, scratch);
  // Each worker's tickets lie side by side and are done upwards, because a prefetcher reads past the end of a ticket.
  // If tickets of the workers alternated, it would fetch lines that another core is about to write. That costs half the
  // bandwidth.
  int first = 0;
  const int count = workers(first);
  const std::size_t step = ticket_elements(count);
  const std::uint64_t each = ceil_divide(ceil_divide(own().count, step), count);
  const std::size_t begin = (count == 1 ? ticket : owner * each + ticket) * step;
  execute_reduce({begin, std::min<std::size_t>(own().count, begin + step)}, outputs, scratch);
}

void Plan::execute_reduce(Range range, const Outputs& outputs, Scratch& scratch) const {
  const std::size_t offset = range.begin * size_of(own().type);
  scratch.inputs.clear();
  scratch.outputs.clear();
  for (int rank = 0; rank < memory_.size(); ++rank)
    scratch.inputs.push_back(memory_.resolve(rank, post(rank).input) + offset);
  if (outputs.own != nullptr) {
    scratch.outputs.push_back(static_cast<std::byte*>(outputs.own->output.data) + offset);
  } else if (kind_ == Kind::kReduce) {
    scratch.outputs.push_back(memory_.resolve(own().root, post(own().root).output) + offset);
  } else {
    for (int rank = 0; rank < memory_.size(); ++rank)
      scratch.outputs.push_back(memory_.resolve(rank, post(rank).output) + offset);
  }
  combine(scratch, range.size(), outputs.large);
}

void Plan::combine(Scratch& scratch, std::size_t count, bool past_caches) const {
  const Reduction reduction{own().type, own().op, own().factor};
  past_caches ? reduce_past_caches(reduction, scratch.inputs, scratch.outputs.front(), count)
              : reduce(reduction, scratch.inputs, scratch.outputs, count);
}

void Plan::execute_reduce_scatter(int owner, std::uint64_t ticket, const Outputs& outputs, Scratch& scratch) const {
  const std::size_t begin = ticket * ticket_bytes();
  const std::size_t bytes = std::min<std::size_t>(ticket_bytes(), output_bytes(post(owner)) - begin);
  scratch.inputs.clear();
  for (int from = 0; from < memory_.size(); ++from) scratch.inputs.push_back(sent(from, owner).data + begin);
  scratch.outputs.assign(1, wanted_at(owner, 0, outputs).data + begin);
  combine(scratch, bytes / size_of(own().type), outputs.large);
}

void Plan::execute_move(int owner, std::uint64_t ticket, const Outputs& outputs) const {
  const std::size_t step = ticket_bytes();
  for (int from = 0; from < memory_.size(); ++from) {
    const std::uint64_t tickets = ceil_divide(wanted_bytes(owner, from), step);
    if (ticket >= tickets) {
      ticket -= tickets;
      continue;
    }
    const Part to = wanted_at(owner, from, outputs);
    const Part source = sent(from, owner);
    const std::size_t begin = ticket * step;
    const std::size_t bytes = std::min(step, to.bytes - begin);
    if (to.data == source.data) return;
    outputs.large ? copy_past_caches(to.data + begin, source.data + begin, bytes)
                  : copy_cached(to.data + begin, source.data + begin, bytes);
    return;
  }
}

}  // namespace lockstep::comm
