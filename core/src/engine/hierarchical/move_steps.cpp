// Operations in which every piece comes from one rank and goes to one rank: all_gather, reduce_scatter, gather, scatter
// and all_to_all.
#include <algorithm>

#include "base/arithmetic.h"
#include "engine/core/group.h"
#include "lockstep/reduce/reduce.h"
#include "step.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

// The sizes of the pieces that pass between two ranks.
class Sizes {
 public:
  Sizes(const StepPlan& plan)  // NOLINT(google-explicit-constructor)
      : table_(plan.table.begin(), plan.table.end()), group_size_(plan.context.size()) {
    const Request& request = plan.request;
    if (request.kind == Kind::kAllGather) even_ = request.input.bytes;
    if (request.kind == Kind::kReduceScatter) even_ = request.output.bytes;
  }
  std::size_t sent(int from, int to) const {
    return table_.empty() ? even_ : table_[std::size_t(from) * group_size_ + to].sent;
  }

 private:
  std::vector<SizeEntry> table_;  // empty: all pieces have the same size
  int group_size_;
  std::size_t even_ = 0;
};

// A chunk of a piece: where it begins in it, and its size.
struct Chunk {
  std::size_t offset;
  std::size_t bytes;
};

// Where chunk number `chunk` of a piece of so many bytes is.
Chunk chunk_of(std::size_t piece, std::size_t chunk) {
  const std::size_t offset = std::min(piece, chunk * kChunkBytes);
  return {offset, std::min(kChunkBytes, piece - offset)};
}

const std::byte* at(const ConstPiece& piece, std::size_t offset) {
  return piece.bytes == 0 ? nullptr : static_cast<const std::byte*>(piece.data) + offset;
}
std::byte* at(const Piece& piece, std::size_t offset) {
  return piece.bytes == 0 ? nullptr : static_cast<std::byte*>(piece.data) + offset;
}

// all_gather: the ranks of one machine send their inputs to the other machines. On another machine of `n` ranks, the
// rank with `index` receives the inputs of the ranks with (index of source) % n == index, one in each round. It shares
// each with the ranks of its machine.
class GatherStep final : public Step {
 public:
  GatherStep(const GroupContext& context, const Request& request, std::shared_ptr<const Sizes> sizes, int source,
             int round, std::size_t chunk)
      : Step(context), request_(request), sizes_(std::move(sizes)), source_(source), round_(round), chunk_(chunk) {}

  Result<Request> before() override {
    if (context_.machine() == source_ && round_ == 0) return hand_round(request_.input.data, context_.rank);
    const int rank = taken_by(context_.index());
    if (context_.machine() == source_ || rank < 0) return Request();
    const Chunk chunk = chunk_for(rank);
    place_ = at(request_.outputs[rank], chunk.offset);
    if (chunk.bytes > 0 && !context_.arena->contains(place_, chunk.bytes)) {
      LOCKSTEP_RETURN_IF_ERROR(staging_.allocate(context_.arena, chunk.bytes));
      place_ = staging_.data();
    }
    return Request();
  }

  bool exchange() override {
    if (!std::exchange(started_, true)) start();
    return messages_.done();
  }

  Result<Request> after() override {
    if (context_.machine() == source_) return make_request(Barrier{});
    return hand_round(place_, taken_by(context_.index()));
  }

 private:
  // The rank of the source machine whose input local rank `index` receives in this round; -1: none.
  int taken_by(int index) const {
    const int from = round_ * static_cast<int>(context_.local_ranks().size()) + index;
    return from < context_.topology.size(source_) ? context_.topology.rank_at(source_, from) : -1;
  }
  Chunk chunk_for(int rank) const { return chunk_of(sizes_->sent(rank, context_.rank), chunk_); }

  void start() {
    const Topology& topology = context_.topology;
    if (context_.machine() != source_) {
      const int rank = taken_by(context_.index());
      if (rank >= 0) messages_.receive(rank, 0, place_, chunk_for(rank).bytes);
      return;
    }
    for (int machine = 0; machine < topology.machines(); ++machine) {
      if (machine == source_ || context_.index() / topology.size(machine) != round_) continue;
      const Chunk chunk = chunk_of(request_.input.bytes, chunk_);
      messages_.send(topology.rank_at(machine, context_.index() % topology.size(machine)), 0,
                     at(request_.input, chunk.offset), chunk.bytes);
    }
  }

  // Each local rank gives what it holds: on the source machine its own input, elsewhere what it has received.
  Request hand_round(const void* held, int held_rank) const {
    const bool home = context_.machine() == source_;
    AllGather args;
    if (held_rank >= 0) {
      const Chunk chunk = chunk_for(held_rank);
      args.input = {home ? at(request_.input, chunk.offset) : static_cast<const std::byte*>(held), chunk.bytes};
    }
    for (std::size_t index = 0; index < context_.local_ranks().size(); ++index) {
      const int rank = home ? context_.local_ranks()[index] : taken_by(static_cast<int>(index));
      if (rank < 0) {
        args.outputs.emplace_back();
        continue;
      }
      const Chunk chunk = chunk_for(rank);
      args.outputs.push_back({at(request_.outputs[rank], chunk.offset), chunk.bytes});
    }
    return make_request(args);
  }

  const Request& request_;
  std::shared_ptr<const Sizes> sizes_;
  int source_;
  int round_;
  std::size_t chunk_;
  ArenaBlock staging_;
  std::byte* place_ = nullptr;
  bool started_ = false;
};

// The parts of an output that a rank of the destination has so far: one sum from each machine.
struct Partials {
  ArenaBlock own;
  std::vector<std::vector<std::byte>> arrived;  // by machine
};

// reduce_scatter: every machine adds up the inputs of its ranks for the ranks of one machine, and sends the sums there.
// On a machine of `n` ranks, rank `index` does this for the ranks with (index of destination) % n == index, in rounds.
class ScatterSumStep final : public Step {
 public:
  struct Place {
    int destination;
    int round;
    int rounds;
    std::size_t chunk;
  };
  ScatterSumStep(const GroupContext& context, const Request& request, std::shared_ptr<const Sizes> sizes, Place place,
                 std::shared_ptr<Partials> partials)
      : Step(context), request_(request), sizes_(std::move(sizes)), place_(place), partials_(std::move(partials)) {}

  Result<Request> before() override {
    const bool home = context_.machine() == place_.destination;
    if (home && place_.round > 0) return Request();
    const int mine = served_by(context_.index());
    ArenaBlock& staging = home ? partials_->own : staging_;
    const std::size_t bytes = mine >= 0 ? chunk_for(mine).bytes : 0;
    if (bytes > 0) LOCKSTEP_RETURN_IF_ERROR(staging.allocate(context_.arena, bytes));
    ReduceScatter args;
    args.type = request_.type;
    args.op = request_.op == ReduceOp::kAvg ? ReduceOp::kSum : request_.op;
    args.factor = request_.factor;
    args.output = {staging.data(), bytes};
    for (std::size_t index = 0; index < context_.local_ranks().size(); ++index) {
      const int rank = served_by(static_cast<int>(index));
      const Chunk chunk = rank >= 0 ? chunk_for(rank) : Chunk{0, 0};
      args.inputs.push_back({rank >= 0 ? at(request_.inputs[rank], chunk.offset) : nullptr, chunk.bytes});
    }
    return make_request(args);
  }

  bool exchange() override {
    if (!std::exchange(started_, true)) start();
    return messages_.done();
  }

  // Steps end in order, so after the last round everything has arrived.
  Result<Request> after() override {
    const bool home = context_.machine() == place_.destination;
    if (home && place_.round + 1 == place_.rounds) combine();
    return make_request(Barrier{});
  }

 private:
  // The rank of the destination for which local rank `index` works; -1: none.
  int served_by(int index) const {
    if (context_.machine() == place_.destination) return context_.local_ranks()[index];
    const int to = place_.round * static_cast<int>(context_.local_ranks().size()) + index;
    return to < context_.topology.size(place_.destination) ? context_.topology.rank_at(place_.destination, to) : -1;
  }
  Chunk chunk_for(int rank) const { return chunk_of(sizes_->sent(context_.rank, rank), place_.chunk); }

  void start() {
    const Topology& topology = context_.topology;
    if (context_.machine() != place_.destination) {
      const int to = served_by(context_.index());
      if (to >= 0) messages_.send(to, 0, staging_.data(), chunk_for(to).bytes);
      return;
    }
    partials_->arrived.resize(topology.machines());
    const std::size_t bytes = chunk_for(context_.rank).bytes;
    for (int machine = 0; machine < topology.machines(); ++machine) {
      if (machine == context_.machine() || context_.index() / topology.size(machine) != place_.round) continue;
      std::vector<std::byte>& arrived = partials_->arrived[machine];
      arrived.resize(bytes);
      messages_.receive(topology.rank_at(machine, context_.index() % topology.size(machine)), 0, arrived.data(), bytes);
    }
  }

  void combine() {
    const Chunk chunk = chunk_for(context_.rank);
    std::vector<const std::byte*> inputs;
    inputs.reserve(context_.topology.machines());
    for (int machine = 0; machine < context_.topology.machines(); ++machine) {
      inputs.push_back(machine == context_.machine() ? partials_->own.data() : partials_->arrived[machine].data());
    }
    std::byte* const output = at(request_.output, chunk.offset);
    const ReduceOp op = request_.op == ReduceOp::kPremulSum ? ReduceOp::kSum : request_.op;
    reduce({request_.type, op, 1.0, static_cast<std::size_t>(context_.size())}, inputs, std::span(&output, 1),
           chunk.bytes / size_of(request_.type));
  }

  const Request& request_;
  std::shared_ptr<const Sizes> sizes_;
  Place place_;
  std::shared_ptr<Partials> partials_;
  ArenaBlock staging_;
  bool started_ = false;
};

// gather, scatter, all_to_all: every piece goes straight from its owner to its receiver.
class DirectStep final : public Step {
 public:
  DirectStep(const GroupContext& context, const Request& request) : Step(context), request_(request) {}

  Result<Request> before() override {
    const int root = context_.topology.index_of(request_.root);
    const bool here = context_.topology.machine_of(request_.root) == context_.machine();
    const bool is_root = context_.rank == request_.root;
    if (request_.kind == Kind::kAllToAll)
      return make_request(AllToAll{local(request_.inputs), local(request_.outputs)});
    if (!here) return Request();
    if (request_.kind == Kind::kGather) {
      return make_request(Gather{request_.input, is_root ? local(request_.outputs) : std::vector<Piece>(), root},
                          context_.index());
    }
    return make_request(Scatter{is_root ? local(request_.inputs) : std::vector<ConstPiece>(), request_.output, root},
                        context_.index());
  }

  bool exchange() override {
    if (!std::exchange(started_, true)) {
      for (int rank = 0; rank < context_.size(); ++rank) {
        if (context_.topology.machine_of(rank) != context_.machine()) start_with(rank);
      }
    }
    return messages_.done();
  }

 private:
  void start_with(int rank) {
    const bool from_root = rank == request_.root;
    if (!request_.outputs.empty()) {
      messages_.receive(rank, 0, request_.outputs[rank].data, request_.outputs[rank].bytes);
    } else if (from_root && request_.kind == Kind::kScatter) {
      messages_.receive(rank, 0, request_.output.data, request_.output.bytes);
    }
    if (!request_.inputs.empty()) {
      messages_.send(rank, 0, request_.inputs[rank].data, request_.inputs[rank].bytes);
    } else if (from_root && request_.kind == Kind::kGather) {
      messages_.send(rank, 0, request_.input.data, request_.input.bytes);
    }
  }

  template <typename P>
  std::vector<P> local(const std::vector<P>& pieces) const {
    std::vector<P> result;
    for (const int rank : context_.local_ranks()) result.push_back(pieces[rank]);
    return result;
  }

  const Request& request_;
  bool started_ = false;
};

// The longest piece. Sizes depend on the sender alone (all_gather) or on the receiver alone (reduce_scatter), so one of
// the pieces that ranks have for themselves is as long.
std::size_t longest_piece(const Topology& topology, const Sizes& sizes) {
  std::size_t longest = 0;
  for (int rank = 0; rank < topology.size(); ++rank) longest = std::max(longest, sizes.sent(rank, rank));
  return longest;
}

// How many rounds it takes until each rank of `machine` has had a partner on every other machine.
int rounds_of(const Topology& topology, int machine) {
  int rounds = 1;
  for (int other = 0; other < topology.machines(); ++other) {
    if (other != machine) rounds = std::max(rounds, ceil_divide(topology.size(machine), topology.size(other)));
  }
  return rounds;
}

}  // namespace

std::vector<std::unique_ptr<Step>> plan_all_gather(const StepPlan& plan) {
  const Topology& topology = plan.context.topology;
  const auto sizes = std::make_shared<const Sizes>(plan);
  const std::size_t longest = longest_piece(topology, *sizes);
  std::vector<std::unique_ptr<Step>> steps;
  for (std::size_t chunk = 0; chunk * kChunkBytes < longest; ++chunk) {
    for (int source = 0; source < topology.machines(); ++source) {
      const int rounds = rounds_of(topology, source);
      for (int round = 0; round < rounds; ++round)
        steps.push_back(std::make_unique<GatherStep>(plan.context, plan.request, sizes, source, round, chunk));
    }
  }
  return steps;
}

std::vector<std::unique_ptr<Step>> plan_reduce_scatter(const StepPlan& plan) {
  const Topology& topology = plan.context.topology;
  const auto sizes = std::make_shared<const Sizes>(plan);
  const std::size_t longest = longest_piece(topology, *sizes);
  std::vector<std::unique_ptr<Step>> steps;
  for (std::size_t chunk = 0; chunk * kChunkBytes < longest; ++chunk) {
    for (int destination = 0; destination < topology.machines(); ++destination) {
      const auto partials = std::make_shared<Partials>();
      const int rounds = rounds_of(topology, destination);
      for (int round = 0; round < rounds; ++round) {
        steps.push_back(std::make_unique<ScatterSumStep>(
            plan.context, plan.request, sizes, ScatterSumStep::Place{destination, round, rounds, chunk}, partials));
      }
    }
  }
  return steps;
}

std::vector<std::unique_ptr<Step>> plan_direct(const StepPlan& plan) {
  std::vector<std::unique_ptr<Step>> steps;
  steps.push_back(std::make_unique<DirectStep>(plan.context, plan.request));
  return steps;
}

}  // namespace lockstep::comm
