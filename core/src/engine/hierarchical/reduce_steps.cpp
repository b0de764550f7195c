// Reductions and broadcast between machines, chunk by chunk. See docs/collectives.md, "Between machines".
#include <algorithm>
#include <cstring>

#include "base/arithmetic.h"
#include "engine/core/group.h"
#include "engine/core/request.h"
#include "lockstep/reduce/reduce.h"
#include "step.h"

namespace lockstep::comm {
namespace {

// Bytes of a chunk for each rail. Data that is reduced, sent, received and reduced again should stay in cache.
constexpr std::size_t kRailBytes = std::size_t{512} << 10;
// Up to this size an exchange in one hop is faster with more than two machines too, though it sends more bytes.
constexpr std::size_t kOneHopBytes = std::size_t{16} << 10;

// Part `index` of `parts` of a range. All parts but the last have whole cache lines.
Range part_of(Range whole, int parts, int index, std::size_t element) {
  const std::size_t line = std::max<std::size_t>(1, kLine / element);
  const std::size_t lines = ceil_divide(whole.size(), line);
  const std::size_t each = ceil_divide(lines, parts) * line;
  const auto clip = [&](std::size_t offset) { return whole.begin + std::min(offset, whole.size()); };
  return {clip(each * index), clip(each * (index + 1))};
}

// The op within a machine: means between machines are made from sums.
ReduceOp within(ReduceOp op) {
  return op == ReduceOp::kAvg ? ReduceOp::kSum : op;
}

class ReduceStep final : public Step {
 public:
  ReduceStep(const GroupContext& context, const Request& request, Range chunk)
      : Step(context), request_(request), chunk_(chunk), element_(unit_of(request.kind, request.type)) {
    const Topology& topology = context.topology;
    has_root_ = request.kind != Kind::kAllReduce;
    root_machine_ = has_root_ ? topology.machine_of(request.root) : -1;
    one_hop_ = topology.machines() == 2 || chunk.size() * element_ <= kOneHopBytes;
    // A premultiplied sum leaves its factor to the local operation.
    alone_ = request.kind == Kind::kAllReduce && request.op != ReduceOp::kPremulSum && context.is_alone();
    if (is_on_rail()) slice_ = slice(context.index());
  }

  std::size_t bytes() const override { return bytes(slice_); }
  Result<Request> before() override;
  void expect() override;
  bool exchange() override;
  Result<Request> after() override;

 private:
  enum class Phase { kStart, kScatter, kGather };
  static constexpr int kToOwner = 0, kFromOwner = 1, kSignal = 2;

  bool is_on_rail() const { return context_.index() < context_.topology.rails(); }
  bool reduces() const { return request_.kind != Kind::kBroadcast; }
  bool on_root_machine() const { return context_.machine() == root_machine_; }
  Range slice(int rail) const {
    return rail < context_.topology.rails() ? part_of(chunk_, context_.topology.rails(), rail, element_) : Range{};
  }
  Range part(int machine) const { return part_of(slice_, context_.topology.machines(), machine, element_); }
  int peer(int machine) const { return context_.topology.rank_at(machine, context_.index()); }
  std::size_t bytes(Range range) const { return range.size() * element_; }
  std::byte* staged(Range range) const { return staging_.data() + (range.begin - slice_.begin) * element_; }
  // What this machine adds to the sum, and where the sum of all machines goes.
  const std::byte* addend_at(Range range) const { return alone_ ? input_at(range) : staged(range); }
  std::byte* sum_at(Range range) const { return alone_ ? output_at(range) : staged(range); }
  const std::byte* input_at(Range range) const {
    return static_cast<const std::byte*>(request_.input.data) + range.begin * element_;
  }
  std::byte* output_at(Range range) const {
    return static_cast<std::byte*>(request_.output.data) + range.begin * element_;
  }
  // The broadcast buffer: the input of the root, the output of all others.
  std::byte* shared_at(Range range) const {
    const bool root = context_.rank == request_.root;
    return root ? const_cast<std::byte*>(input_at(range)) : output_at(range);
  }
  template <typename Visit>
  void each_other(const Visit& visit) const {
    for (int machine = 0; machine < context_.topology.machines(); ++machine) {
      if (machine != context_.machine()) visit(machine);
    }
  }
  Request reduce_scatter_request();
  void start_reduction();
  void start_broadcast();
  std::byte* result_place() const;
  void combine(Range range, std::byte* result);
  void spread();

  const Request& request_;
  Range chunk_;
  std::size_t element_;
  bool has_root_;
  int root_machine_;
  bool alone_;    // on its machine, in an all-reduce: nothing is staged, sums go from the input straight to the output
  bool one_hop_;  // machines exchange whole slices, instead of parts and then results
  Range slice_;
  Phase phase_ = Phase::kStart;
  bool combined_ = false;
  bool signalled_ = false;
  ArenaBlock staging_;                  // this rail's slice
  ArenaBlock arrivals_;                 // data from other machines, one after another
  std::vector<std::byte*> arrived_at_;  // by machine
  std::byte* result_ = nullptr;
};

Request ReduceStep::reduce_scatter_request() {
  ReduceScatter args;
  args.type = request_.type;
  args.op = within(request_.op);
  args.factor = request_.factor;
  const int locals = static_cast<int>(context_.local_ranks().size());
  for (int index = 0; index < locals; ++index) {
    const Range range = slice(index);
    args.inputs.push_back({range.size() == 0 ? nullptr : input_at(range), bytes(range)});
  }
  args.output = {staging_.data(), bytes(slice_)};
  return make_request(args);
}

Result<Request> ReduceStep::before() {
  if (slice_.size() > 0) {
    const std::size_t others = context_.topology.machines() - 1;
    const bool needs_slice = !alone_ && (reduces() || !on_root_machine());
    if (needs_slice) LOCKSTEP_RETURN_IF_ERROR(staging_.allocate(context_.arena, bytes(slice_)));
    if (reduces()) {
      const std::size_t each = bytes(one_hop_ ? slice_ : part(context_.machine()));
      LOCKSTEP_RETURN_IF_ERROR(arrivals_.allocate(context_.arena, std::max<std::size_t>(1, others * each)));
      arrived_at_.resize(others + 1);
      std::byte* place = arrivals_.data();
      each_other([&](int machine) { arrived_at_[machine] = std::exchange(place, place + each); });
    }
    result_ = staging_.data();
  }
  if (alone_) return Request();
  if (reduces()) return reduce_scatter_request();
  if (!on_root_machine()) return Request();
  return make_request(Broadcast{shared_at(chunk_), bytes(chunk_), context_.topology.index_of(request_.root)},
                      context_.index());
}

bool ReduceStep::exchange() {
  if (slice_.size() == 0) return true;
  if (phase_ == Phase::kStart) {
    phase_ = Phase::kScatter;
    if (reduces()) {
      start_reduction();
    } else {
      start_broadcast();
    }
  }
  if (phase_ == Phase::kScatter) {
    // The sum may overwrite an input that is being sent.
    if (!(alone_ && one_hop_ ? messages_.done() : messages_.received())) return false;
    const bool owns = !has_root_ || !one_hop_ || on_root_machine();
    if (reduces() && owns && !combined_) {
      combined_ = true;
      const Range mine = one_hop_ ? slice_ : part(context_.machine());
      if (one_hop_) result_ = result_place();
      combine(mine, one_hop_ ? result_ : sum_at(mine));
    }
    if (!messages_.done()) return false;  // parts that are being sent are overwritten next
    phase_ = Phase::kGather;
    if (!one_hop_) spread();
  }
  if (!messages_.done()) return false;
  if (!reduces() && !on_root_machine() && !std::exchange(signalled_, true)) {
    // The root's machine must not run ahead by more than its window of steps.
    messages_.signal(peer(root_machine_), kSignal);
  }
  return messages_.done();
}

void ReduceStep::expect() {
  if (slice_.size() == 0) return;
  const Range mine = one_hop_ ? slice_ : part(context_.machine());
  if (!reduces()) {
    if (!on_root_machine()) messages_.receive(peer(root_machine_), kToOwner, staged(mine), bytes(mine));
    return;
  }
  if (one_hop_ && has_root_ && !on_root_machine()) return;
  each_other([&](int machine) { messages_.receive(peer(machine), kToOwner, arrived_at_[machine], bytes(mine)); });
}

// In one hop all machines send their slices to all (or to the root's). Otherwise each part has a machine that owns it:
// that machine receives the part from all others, adds them up and sends the result.
void ReduceStep::start_reduction() {
  each_other([&](int machine) {
    const bool to = !one_hop_ || !has_root_ || machine == root_machine_;
    const Range theirs = one_hop_ ? slice_ : part(machine);
    if (to) messages_.send(peer(machine), kToOwner, addend_at(theirs), bytes(theirs));
  });
}

// The root's machine sends each other machine one part, which that machine spreads; with two machines, the whole slice.
void ReduceStep::start_broadcast() {
  if (!on_root_machine()) return;
  each_other([&](int machine) {
    const Range theirs = one_hop_ ? slice_ : part(machine);
    messages_.send(peer(machine), kToOwner, shared_at(theirs), bytes(theirs));
    messages_.await_signal(peer(machine), kSignal);
    if (!one_hop_)
      messages_.send(peer(machine), kFromOwner, shared_at(part(root_machine_)), bytes(part(root_machine_)));
  });
}

// The place of the result of a reduction in one hop. It cannot be the slice that is still being sent. It is the output,
// if the other ranks of this machine can fetch it from there; else the place where another machine's slice arrived.
std::byte* ReduceStep::result_place() const {
  if (alone_) return output_at(slice_);
  const bool visible = request_.kind == Kind::kAllReduce && context_.arena->contains(output_at(slice_), bytes(slice_));
  return visible ? output_at(slice_) : arrivals_.data();
}

void ReduceStep::combine(Range range, std::byte* result) {
  std::vector<const std::byte*> inputs;
  inputs.reserve(context_.topology.machines());
  for (int machine = 0; machine < context_.topology.machines(); ++machine)
    inputs.push_back(machine == context_.machine() ? addend_at(range) : arrived_at_[machine]);
  const ReduceOp op = request_.op == ReduceOp::kPremulSum ? ReduceOp::kSum : request_.op;
  reduce({request_.type, op, 1.0, static_cast<std::size_t>(context_.size())}, inputs, std::span(&result, 1),
         range.size());
}

void ReduceStep::spread() {
  const Range mine = part(context_.machine());
  each_other([&](int machine) {
    const Range theirs = part(machine);
    if (reduces()) {
      if (!has_root_ || machine == root_machine_) messages_.send(peer(machine), kFromOwner, sum_at(mine), bytes(mine));
      if (!has_root_ || on_root_machine()) messages_.receive(peer(machine), kFromOwner, sum_at(theirs), bytes(theirs));
    } else if (!on_root_machine()) {
      if (machine != root_machine_) messages_.send(peer(machine), kFromOwner, staged(mine), bytes(mine));
      messages_.receive(peer(machine), kFromOwner, staged(theirs), bytes(theirs));
    }
  });
}

Result<Request> ReduceStep::after() {
  const bool wanted = request_.kind == Kind::kAllReduce || (request_.kind == Kind::kReduce && on_root_machine()) ||
                      (request_.kind == Kind::kBroadcast && !on_root_machine());
  if (alone_) return Request();
  if (!wanted) return make_request(Barrier{});
  std::vector<Piece> outputs;
  const bool mine = request_.kind != Kind::kReduce || context_.rank == request_.root;
  const int locals = static_cast<int>(context_.local_ranks().size());
  for (int index = 0; mine && index < locals; ++index) {
    const Range range = slice(index);
    outputs.push_back({range.size() == 0 ? nullptr : output_at(range), bytes(range)});
  }
  if (request_.kind == Kind::kReduce) {
    return make_request(Gather{{result_, bytes(slice_)}, std::move(outputs), context_.topology.index_of(request_.root)},
                        context_.index());
  }
  return make_request(AllGather{{result_, bytes(slice_)}, std::move(outputs)});
}

}  // namespace

std::vector<std::unique_ptr<Step>> plan_reductions(const StepPlan& plan) {
  const std::size_t element = unit_of(plan.request.kind, plan.request.type);
  const std::size_t line = std::max<std::size_t>(1, kLine / element);
  const std::size_t step = std::max(line, kRailBytes / element / line * line) * plan.context.topology.rails();
  std::vector<std::unique_ptr<Step>> steps;
  for (std::size_t begin = 0; begin < plan.request.count; begin += step) {
    const Range chunk{begin, std::min(plan.request.count, begin + step)};
    steps.push_back(std::make_unique<ReduceStep>(plan.context, plan.request, chunk));
  }
  return steps;
}

}  // namespace lockstep::comm
