// The plans of operations between machines, for every way to place up to five ranks on two or three machines, over a
// network in memory. Local operations are carried out here, by copying, so nothing but the steps is tried.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "engine/hierarchical/step.h"
#include "lockstep/reduce/reduce.h"
#include "support/effort.h"
#include "support/fake_transport.h"

namespace lockstep::comm {
namespace {

using Bytes = std::vector<std::byte>;
using Steps = std::vector<std::unique_ptr<Step>>;

constexpr int kMostRanks = 5;
constexpr int kMostMachines = 3;
constexpr std::size_t kElement = sizeof(double);
constexpr int kMostTurns = 1'000'000;

// The local operation of one machine; `requests` by index.
void run_local(const std::vector<Request>& requests) {
  std::vector<std::vector<Bytes>> sent(requests.size());  // by index of sender and receiver
  const auto copy = [](const ConstPiece& piece) {
    const auto* const data = static_cast<const std::byte*>(piece.data);
    return piece.bytes == 0 ? Bytes() : Bytes(data, data + piece.bytes);
  };
  for (std::size_t from = 0; from < requests.size(); ++from) {
    ASSERT_EQ(requests[from].kind, requests[0].kind);
    for (std::size_t to = 0; to < requests.size(); ++to)
      sent[from].push_back(copy(requests[from].inputs.empty() ? requests[from].input : requests[from].inputs.at(to)));
  }
  const auto put = [](const Bytes& data, const Piece& piece) {
    ASSERT_EQ(data.size(), piece.bytes);
    if (piece.bytes > 0) std::memcpy(piece.data, data.data(), piece.bytes);
  };
  for (std::size_t to = 0; to < requests.size(); ++to) {
    const Request& request = requests[to];
    const auto root = static_cast<std::size_t>(request.root);
    switch (request.kind) {
      case Kind::kNone:
      case Kind::kBarrier: break;
      case Kind::kBroadcast:
        if (to != root) put(sent[root][to], request.output);
        break;
      case Kind::kScatter: put(sent[root][to], request.output); break;
      case Kind::kAllGather:
      case Kind::kAllToAll:
      case Kind::kGather:
        for (std::size_t from = 0; from < request.outputs.size(); ++from) put(sent[from][to], request.outputs[from]);
        break;
      case Kind::kReduceScatter: {
        std::vector<const std::byte*> inputs;
        for (const auto& by_receiver : sent) {
          ASSERT_EQ(by_receiver[to].size(), request.output.bytes);
          inputs.push_back(by_receiver[to].data());
        }
        auto* output = static_cast<std::byte*>(request.output.data);
        if (request.output.bytes > 0)
          reduce({request.type, request.op, request.factor}, inputs, std::span(&output, 1),
                 request.output.bytes / kElement);
        break;
      }
      default: FAIL() << "no step uses this: " << to_string(request.kind);
    }
  }
}

// The ranks of a group, all in this thread, and the network between them.
class ThreadOfRanks {
 public:
  explicit ThreadOfRanks(const std::vector<Member>& members) : topology_(members), arena_(make_arena()) {
    for (int rank = 0; rank < size(); ++rank)
      transports_.push_back(network_.open([](const ActiveMessage&) { return false; }));
    for (int rank = 0; rank < size(); ++rank) {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer != rank) transports_[rank]->introduce(peer, transports_[peer]->address());
      }
      contexts_.push_back({topology_, rank, *transports_[rank], arena_, GroupNames{name_, roster_}, /*token=*/"",
                           /*tag_key=*/0x9d2c5680ca6b01f7});
    }
  }

  int size() const { return topology_.size(); }
  const GroupContext& context(int rank) const { return contexts_[rank]; }
  const std::shared_ptr<SharedArena>& arena() const { return arena_; }

  // All ranks make these requests, as after a meeting.
  void run(const std::vector<Request>& requests, std::mt19937& order) {
    std::vector<Call> calls;
    std::vector<SizeEntry> table;
    for (int rank = 0; rank < size(); ++rank) {
      calls.push_back(make_call(requests[rank], rank));
      for (const SizeEntry& entry : size_row(requests[rank], rank, size())) table.push_back(entry);
    }
    if (are_even(calls)) table.clear();
    std::vector<Steps> steps;
    for (int rank = 0; rank < size(); ++rank) steps.push_back(plan_steps({contexts_[rank], requests[rank], table}));
    run(std::move(steps), order);
  }

  // `steps` by rank. Which machine goes on next is drawn: one machine may be some steps ahead of another.
  void run(std::vector<Steps> steps, std::mt19937& order) {
    for (const Steps& of_rank : steps) ASSERT_EQ(of_rank.size(), steps[0].size());
    std::vector<Progress> machines(topology_.machines());
    std::size_t over = 0;
    for (int turn = 0; over < machines.size(); ++turn) {
      ASSERT_LT(turn, kMostTurns) << "the plan does not end";
      const int machine = static_cast<int>(order() % machines.size());
      if (machines[machine].step == steps[0].size()) continue;
      ASSERT_NO_FATAL_FAILURE(go_on(machine, machines[machine], steps));
      if (machines[machine].step == steps[0].size()) ++over;
    }
    number_ += steps[0].size();
  }

 private:
  struct Progress {
    std::size_t step = 0;
    bool began = false;
  };

  static std::shared_ptr<SharedArena> make_arena() {
    SharedArenaOptions options;
    options.first_segment = std::size_t{16} << 20;
    return SharedArena::create(options).value();
  }

  void go_on(int machine, Progress& progress, std::vector<Steps>& steps) {
    const std::vector<int>& ranks = topology_.ranks(machine);
    const auto step_of = [&](int rank) -> Step& { return *steps[rank][progress.step]; };
    if (!std::exchange(progress.began, true)) {
      std::vector<Request> requests;
      for (const int rank : ranks) {
        step_of(rank).messages().set_number(number_ + progress.step);
        requests.push_back(step_of(rank).before().value());
      }
      for (const int rank : ranks) step_of(rank).expect();
      return run_local(requests);
    }
    bool exchanged = true;
    for (const int rank : ranks) {
      transports_[rank]->progress();
      exchanged = step_of(rank).exchange() && exchanged;
    }
    if (!exchanged) return;
    std::vector<Request> requests;
    for (const int rank : ranks) requests.push_back(step_of(rank).after().value());
    ASSERT_NO_FATAL_FAILURE(run_local(requests));
    for (const int rank : ranks) {
      step_of(rank).finish();
      ASSERT_TRUE(step_of(rank).messages().status().ok());
      steps[rank][progress.step].reset();
    }
    progress = {progress.step + 1, false};
  }

  const Topology topology_;
  const Roster roster_;
  const std::string name_;
  const std::shared_ptr<SharedArena> arena_;
  const test::FakeSwitch network_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<GroupContext> contexts_;
  std::uint64_t number_ = 0;  // of the next step
};

// A buffer of doubles, in the arena or private.
class Buffer {
 public:
  Buffer(SharedArena& arena, bool shared, std::size_t count) : arena_(arena), count_(count) {
    if (shared && count > 0) {
      shared_ = arena.allocate(count * kElement).value();
    } else {
      private_.resize(count);
    }
    std::fill_n(data(), count, -1.0);
  }
  ~Buffer() {
    if (shared_ != nullptr) arena_.deallocate(shared_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  double* data() { return shared_ != nullptr ? reinterpret_cast<double*>(shared_) : private_.data(); }
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return count_ * kElement; }
  operator ConstPiece() { return {data(), bytes()}; }  // NOLINT(google-explicit-constructor)
  operator Piece() { return {data(), bytes()}; }       // NOLINT(google-explicit-constructor)

 private:
  SharedArena& arena_;
  std::size_t count_;
  std::byte* shared_ = nullptr;
  std::vector<double> private_;
};

double value(int from, int to, std::size_t i) {
  return 1000 * from + 100 * to + static_cast<double>(i % 97);
}

struct Case {
  Kind kind;
  std::size_t count;  // elements of a piece
  bool uneven = false;
  int root = 0;
  ReduceOp op = ReduceOp::kSum;
};

std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << to_string(one.kind) << " of " << one.count << (one.uneven ? ", uneven" : "") << ", root " << one.root
             << ", " << to_string(one.op);
}

// One operation: its buffers, by rank, and what must be in them.
class Trial {
 public:
  Trial(ThreadOfRanks& group, const Case& one, std::mt19937& random) : group_(group), case_(one), random_(random) {
    for (int rank = 0; rank < size(); ++rank) requests_.push_back(make(rank));
  }

  void run() {
    ASSERT_NO_FATAL_FAILURE(group_.run(requests_, random_));
    for (const Expected& expected : expected_) {
      for (std::size_t i = 0; i < expected.buffer->count(); ++i)
        ASSERT_NEAR(expected.buffer->data()[i], expected.value(i), 1e-9) << "rank " << expected.rank << ", " << i;
    }
  }

 private:
  struct Expected {
    int rank;
    std::shared_ptr<Buffer> buffer;
    std::function<double(std::size_t)> value;
  };

  int size() const { return group_.size(); }
  bool is_root(int rank) const { return rank == case_.root; }
  std::size_t count(int from, int to) const {
    if (!case_.uneven) return case_.count;
    const int seed = case_.kind == Kind::kAllGather || case_.kind == Kind::kGather ? from
                     : case_.kind == Kind::kAllToAll                               ? from * 3 + to
                                                                                   : to;
    return case_.count * (seed * 7 % 4) / 3;
  }
  Buffer& add(std::size_t count) {
    return *buffers_.emplace_back(std::make_shared<Buffer>(*group_.arena(), random_() % 2 == 0, count));
  }
  Buffer& give(int from, int to) {
    Buffer& buffer = add(count(from, to));
    for (std::size_t i = 0; i < buffer.count(); ++i) buffer.data()[i] = value(from, to, i);
    return buffer;
  }
  Buffer& take(int rank, std::size_t count, std::function<double(std::size_t)> value) {
    Buffer& buffer = add(count);
    expected_.push_back({rank, buffers_.back(), std::move(value)});
    return buffer;
  }
  Buffer& take_from(int from, int to) {
    return take(to, count(from, to), [=](std::size_t i) { return value(from, to, i); });
  }
  // What ranks reduce into the piece for `to`.
  double reduced(int to, std::size_t i) const {
    double result = case_.op == ReduceOp::kMax ? value(size() - 1, to, i) : 0;
    for (int from = 0; from < size() && case_.op != ReduceOp::kMax; ++from) result += value(from, to, i);
    if (case_.op == ReduceOp::kAvg) result /= size();
    return case_.op == ReduceOp::kPremulSum ? 2 * result : result;
  }

  Request make(int rank) {
    const DataType type = DataType::kFloat64;
    const auto sum_for = [this](int to) { return [this, to](std::size_t i) { return reduced(to, i); }; };
    switch (case_.kind) {
      case Kind::kAllReduce:
        return make_request(AllReduce{give(rank, 0).data(), take(rank, case_.count, sum_for(0)).data(), case_.count,
                                      type, case_.op, 2.0});
      case Kind::kReduce: {
        void* const output = is_root(rank) ? take(rank, case_.count, sum_for(0)).data() : nullptr;
        return make_request(Reduce{give(rank, 0).data(), output, case_.count, type, case_.op, 2.0, case_.root}, rank);
      }
      case Kind::kBroadcast: {
        const int root = case_.root;
        Buffer& data = is_root(rank) ? give(rank, 0)
                                     : take(rank, case_.count, [root](std::size_t i) { return value(root, 0, i); });
        return make_request(Broadcast{data.data(), data.bytes(), root, type}, rank);
      }
      case Kind::kReduceScatter: {
        ReduceScatter args{{}, take(rank, count(0, rank), sum_for(rank)), type, case_.op, 2.0};
        for (int to = 0; to < size(); ++to) args.inputs.push_back(give(rank, to));
        return make_request(args);
      }
      case Kind::kAllGather:
      case Kind::kGather: {
        AllGather args{give(rank, 0), {}, type};
        const bool gets = case_.kind == Kind::kAllGather || is_root(rank);
        for (int from = 0; gets && from < size(); ++from)
          args.outputs.push_back(take(rank, count(from, rank), [from](std::size_t i) { return value(from, 0, i); }));
        if (case_.kind == Kind::kAllGather) return make_request(args);
        return make_request(Gather{args.input, args.outputs, case_.root, type}, rank);
      }
      case Kind::kScatter: {
        Scatter args{{}, take_from(case_.root, rank), case_.root, type};
        for (int to = 0; is_root(rank) && to < size(); ++to) args.inputs.push_back(give(rank, to));
        return make_request(args, rank);
      }
      default: {
        AllToAll args{{}, {}, type};
        for (int other = 0; other < size(); ++other) {
          args.inputs.push_back(give(rank, other));
          args.outputs.push_back(take_from(other, rank));
        }
        return make_request(args);
      }
    }
  }

  ThreadOfRanks& group_;
  const Case case_;
  std::mt19937& random_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::vector<Expected> expected_;
  std::vector<Request> requests_;
};

// Few elements, one slice with a tail, more than goes in one hop, and more than one chunk of a rail.
const std::vector<std::size_t> kCounts{1, 67, 3'000, 40'000};
// More than one chunk of what only moves.
constexpr std::size_t kManyChunks = 150'000;

std::vector<Case> all_cases(int size) {
  std::vector<Case> cases;
  for (const std::size_t count : kCounts) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kPremulSum}) {
      cases.push_back({Kind::kAllReduce, count, false, 0, op});
      cases.push_back({Kind::kReduceScatter, count, false, 0, op});
    }
    for (const bool uneven : {false, true}) {
      for (const Kind kind : {Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll})
        cases.push_back({kind, count, uneven});
    }
    for (int root = 0; root < size; ++root) {
      cases.push_back({Kind::kReduce, count, false, root});
      cases.push_back({Kind::kBroadcast, count, false, root});
      cases.push_back({Kind::kGather, count, count > 1, root});
      cases.push_back({Kind::kScatter, count, count > 1, root});
    }
  }
  if (size == 3) {
    cases.push_back({Kind::kAllGather, kManyChunks, true});
    cases.push_back({Kind::kReduceScatter, kManyChunks, true});
  }
  return cases;
}

// fn(machine_of) for each way to place `size` ranks on 2 to kMostMachines machines, numbered in the order of their
// first ranks.
template <typename Function>
void for_each_placement(int size, const Function& fn, std::vector<int> machine_of = {0}) {
  const int machines = 1 + *std::max_element(machine_of.begin(), machine_of.end());
  if (static_cast<int>(machine_of.size()) == size) {
    if (machines > 1) fn(machine_of);
    return;
  }
  for (int machine = 0; machine <= std::min(machines, kMostMachines - 1); ++machine) {
    std::vector<int> longer = machine_of;
    longer.push_back(machine);
    for_each_placement(size, fn, std::move(longer));
  }
}

std::vector<Member> members_on(const std::vector<int>& machine_of) {
  std::vector<Member> members;
  for (std::size_t rank = 0; rank < machine_of.size(); ++rank) {
    const std::string machine = std::to_string(machine_of[rank]);
    members.push_back({static_cast<int>(rank), static_cast<int>(machine_of.size()), 1, machine, machine});
  }
  return members;
}

class Plans : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Plans, testing::Range(2, kMostRanks + 1));

TEST_P(Plans, MoveAndReduceEverythingOnEveryTopology) {
  std::mt19937 random(GetParam());
  const std::vector<Case> cases = all_cases(GetParam());
  // Large groups have many topologies: each tries a part of the cases.
  const int part = test::kSlowdown * (GetParam() == 5 ? 5 : GetParam() == 4 ? 2 : 1);
  int number = 0;
  for_each_placement(GetParam(), [&](const std::vector<int>& machine_of) {
    SCOPED_TRACE(testing::PrintToString(machine_of));
    ThreadOfRanks group(members_on(machine_of));
    for (const Case& one : cases) {
      if (number++ % part != 0) continue;
      std::ostringstream text;
      text << one;
      SCOPED_TRACE(text.str());
      ASSERT_NO_FATAL_FAILURE(Trial(group, one, random).run());
    }
  });
}

TEST_P(Plans, AMeetingTellsEveryRankEverything) {
  constexpr std::size_t kBlock = 24;
  std::mt19937 random(GetParam());
  for_each_placement(GetParam(), [&](const std::vector<int>& machine_of) {
    SCOPED_TRACE(testing::PrintToString(machine_of));
    ThreadOfRanks group(members_on(machine_of));
    const int size = group.size();
    std::vector<Bytes> mine, all(size, Bytes(kBlock * size));
    for (int rank = 0; rank < size; ++rank) mine.emplace_back(kBlock, std::byte(rank + 1));
    std::vector<Steps> steps(size);
    for (int rank = 0; rank < size; ++rank)
      steps[rank].push_back(
          std::make_unique<MeetingStep>(group.context(rank), mine[rank].data(), all[rank].data(), kBlock));
    ASSERT_NO_FATAL_FAILURE(group.run(std::move(steps), random));
    for (const Bytes& got : all) {
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], std::byte(i / kBlock + 1));
    }
  });
}

// A message that was sent without the group's key meets no receive.
TEST(StepTags, NeedTheKeyOfTheirGroup) {
  const test::FakeSwitch network;
  const auto nothing = [](const ActiveMessage&) { return false; };
  std::vector<std::unique_ptr<Transport>> ends;
  for (int i = 0; i < 3; ++i) ends.push_back(network.open(nothing));
  ends[0]->introduce(1, ends[1]->address());
  ends[1]->introduce(0, ends[0]->address());
  ends[2]->introduce(1, ends[1]->address());
  const Topology topology(members_on({0, 1}));
  const Roster roster;
  const std::string name;
  const GroupNames names{name, roster};
  const GroupContext sender{topology, 0, *ends[0], nullptr, names, "", 77};
  const GroupContext receiver{topology, 1, *ends[1], nullptr, names, "", 77};
  const GroupContext stranger{topology, 0, *ends[2], nullptr, names, "", 0};
  const int right = 1;
  const int wrong = 2;
  int got = 0;
  StepMessages of_sender(sender);
  StepMessages of_receiver(receiver);
  StepMessages of_stranger(stranger);
  for (StepMessages* messages : {&of_sender, &of_receiver, &of_stranger}) messages->set_number(5);
  const auto progress = [&] {
    for (int round = 0; round < 100; ++round) {
      for (const auto& end : ends) end->progress();
    }
  };
  of_receiver.receive(0, 1, &got, sizeof got);
  of_stranger.send(1, 1, &wrong, sizeof wrong);
  progress();
  EXPECT_FALSE(of_receiver.received());
  of_sender.send(1, 1, &right, sizeof right);
  progress();
  EXPECT_TRUE(of_receiver.received());
  EXPECT_EQ(got, right);
  for (const auto& end : ends) end->close(/*gently=*/false, std::chrono::milliseconds(0));  // ends their requests
}

}  // namespace
}  // namespace lockstep::comm
