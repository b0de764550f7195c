// What ranks are told when they disagree, come late, leave or break the group.
#include <gtest/gtest.h>

#include <latch>
#include <numeric>

#include "engine/calls.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

Deadline soon() {
  return Deadline::after(30s);
}

void expect_says(const Status& status, ErrorCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message() << "\nlacks: " << text;
}

// What each of two ranks calls, and what both are told.
struct Disagreement {
  const char* name;
  std::function<Status(Communicator&, float*)> calls[2];
  std::string text;
};

template <typename Args>
std::function<Status(Communicator&, float*)> blocking(const std::function<Args(float*)>& make) {
  return [make](Communicator& group, float* data) { return group.run(make(data), soon()); };
}

template <typename Args>
std::function<Status(Communicator&, float*)> async(const std::function<Args(float*)>& make) {
  return [make](Communicator& group, float* data) {
    auto operation = group.start(make(data));
    return operation.ok() ? operation->wait(soon()) : operation.status();
  };
}

std::function<AllReduce(float*)> reduction(std::size_t count, DataType type = DataType::kFloat32,
                                           ReduceOp op = ReduceOp::kSum, double factor = 1) {
  return [=](float* data) { return AllReduce{data, data, count, type, op, factor}; };
}

std::vector<Disagreement> disagreements() {
  using Barriers = std::function<Barrier(float*)>;
  const Barriers barrier = [](float*) { return Barrier{}; };
  const auto broadcast = [](int root) {
    return std::function<Broadcast(float*)>([=](float* data) { return Broadcast{data, 64, root}; });
  };
  const auto gather = [](std::size_t bytes, std::size_t wanted) {
    return std::function<AllGather(float*)>([=](float* data) {
      return AllGather{{data, bytes}, {{data + 50'000, wanted}, {data + 60'000, wanted}}};
    });
  };
  const auto refusal = std::function<Refusal(float*)>([](float*) { return Refusal{"the tensor is sparse"}; });
  return {
      {"small and refused", {blocking(reduction(4)), async(refusal)}, "rank(s) 1 could not take part: the tensor is"},
      {"large and refused", {async(refusal), blocking(reduction(40'000))}, "rank(s) 0 could not take part: the tensor"},
      {"refused by all", {async(refusal), async(refusal)}, "rank(s) 0, 1 could not take part: the tensor is sparse."},
      {"kind",
       {blocking(reduction(4)), blocking(barrier)},
       "rank(s) 0 called all_reduce of 4 float32 (sum); rank(s) 1"
       " called barrier"},
      {"small count", {blocking(reduction(4)), blocking(reduction(5))}, "rank(s) 1 called all_reduce of 5 float32"},
      {"small and large", {blocking(reduction(4)), blocking(reduction(40'000))}, "all_reduce of 40000 float32"},
      {"large, async", {async(reduction(30'000)), blocking(reduction(40'000))}, "rank(s) 0 called all_reduce of 30000"},
      {"type",
       {blocking(reduction(8)), async(reduction(8, DataType::kInt32))},
       "rank(s) 1 called all_reduce of 8 int32"},
      {"op", {blocking(reduction(8)), blocking(reduction(8, DataType::kFloat32, ReduceOp::kMax))}, "float32 (max)"},
      {"factor",
       {blocking(reduction(8, DataType::kFloat32, ReduceOp::kPremulSum, 0.5)),
        blocking(reduction(8, DataType::kFloat32, ReduceOp::kPremulSum, 0.25))},
       "float32 (premul_sum by 0.25); rank(s) 0 called all_reduce of 8 float32 (premul_sum by 0.5)"},
      {"root",
       {blocking(broadcast(0)), async(broadcast(1))},
       "rank(s) 1 called broadcast of 64 bytes of byte from rank 1"},
      {"piece",
       {blocking(gather(64, 64)), blocking(gather(64, 60))},
       "rank 1 expects 60 bytes from rank 0, which sends "
       "64"},
  };
  // The analyzer loses sight of what std::function frees. NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
}

TEST(ErrorsMulti, DisagreementIsToldAlikeAndTheGroupGoesOn) {
  for (const Disagreement& disagreement : disagreements()) {
    SCOPED_TRACE(disagreement.name);
    Status told[2];
    test::run_threads(2, [&](Communicator& group) {
      std::vector<float> data(100'000, 1.0F);
      told[group.rank()] = disagreement.calls[group.rank()](group, data.data());
      ASSERT_TRUE(group.health().ok());
      float value = 1;
      ASSERT_TRUE(group.run(AllReduce{&value, &value, 1}, soon()).ok());
      ASSERT_EQ(value, 2);
    });
    EXPECT_EQ(told[0].message(), told[1].message());
    expect_says(told[0], ErrorCode::kMismatch, disagreement.text);
    expect_says(told[1], ErrorCode::kMismatch, "in collective #1");
  }
}

TEST(ErrorsMulti, WhatIsWrongByItselfIsRefusedOnTheSpot) {
  test::run_threads(2, [](Communicator& group) {
    float value = 0;
    const ConstPiece in{&value, 4};
    const Piece out{&value, 4};
    expect_says(group.run(Broadcast{&value, 4, 2}, soon()), ErrorCode::kInvalidArgument, "root 2 is not a rank");
    expect_says(group.run(Reduce{&value, &value, 1, DataType::kFloat32, ReduceOp::kSum, 1, -1}, soon()),
                ErrorCode::kInvalidArgument, "reduce: root -1");
    expect_says(group.run(AllReduce{&value, &value, 1, DataType::kFloat32, ReduceOp::kBxor}, soon()),
                ErrorCode::kUnsupported, "bxor is not defined for float32");
    expect_says(group.start(AllReduce{&value, &value, 4, DataType::kByte}).status(), ErrorCode::kUnsupported, "byte");
    expect_says(group.run(AllGather{in, {out}}, soon()), ErrorCode::kInvalidArgument, "one output per rank (2), got 1");
    expect_says(group.run(AllToAll{{in}, {out, out}}, soon()), ErrorCode::kInvalidArgument, "one input per rank");
    expect_says(group.run(ReduceScatter{{in, in, in}, out}, soon()), ErrorCode::kInvalidArgument, "got 3");
    expect_says(group.run(ReduceScatter{{in, in}, {&value, 3}}, soon()), ErrorCode::kInvalidArgument, "3 bytes");
    const Status lists = group.rank() == 0 ? group.run(Scatter{{in}, out, 0}, soon()) : Status();
    if (group.rank() == 0) expect_says(lists, ErrorCode::kInvalidArgument, "scatter");
    EXPECT_EQ(group.sequence(), 0U) << "no number was used up";
    ASSERT_TRUE(group.run(Barrier{}, soon()).ok());
  });
}

TEST(ErrorsMulti, RanksOutsideTheirWorldAreRefused) {
  auto store = std::make_shared<HashStore>();
  for (const auto& [rank, world] : {std::pair{-1, 2}, std::pair{2, 2}, std::pair{0, 0}}) {
    CommunicatorOptions options;
    options.rank = rank;
    options.group_size = world;
    expect_says(Communicator::create(store, options).status(), ErrorCode::kInvalidArgument, "is not in a group of");
  }
}

TEST(ErrorsMulti, TimeoutNamesWhoNeverCalledAndWhatItDidLast) {
  test::Meeting called;
  test::run_threads(4, [&](Communicator& group) {
    ASSERT_TRUE(group.run(Barrier{}, soon()).ok());
    Status status;
    float value = 1;
    const AllReduce args{&value, &value, 1};
    if (group.rank() == 0) {
      called.wait();
      status = group.run(args, Deadline::after(100ms));
    } else if (group.rank() == 2) {
      auto operation = group.start(args);
      called.open();
      status = operation.ok() ? operation->wait(soon()) : operation.status();
    } else {
      while (group.health().ok()) std::this_thread::yield();
      status = group.run(Barrier{}, soon());
    }
    expect_says(status, ErrorCode::kTimeout, "all_reduce #2 of group 'world' timed out on rank 0");
    expect_says(status, ErrorCode::kTimeout, "rank(s) 1 (last call barrier #1), 3 (last call barrier #1) never called");
    // All ranks get the first error, now and later.
    EXPECT_EQ(status.message(), group.health().message());
    EXPECT_EQ(group.run(Broadcast{nullptr, 0, 0}, soon()).message(), status.message());
    EXPECT_EQ(group.start(Send{{}, 0, 0}).status().message(), status.message());
  });
}

TEST(ErrorsMulti, ACallWaitsForItsTurnUntilItsOwnDeadline) {
  test::run_threads(2, [](Communicator& group) {
    if (group.rank() == 1) {
      while (group.health().ok()) std::this_thread::yield();
      return;
    }
    for (int i = 0; i <= Communicator::kMaxPending; ++i) ASSERT_TRUE(group.start(Barrier{}).ok());
    const Status status = group.run(Barrier{}, Deadline::after(100ms));
    expect_says(status, ErrorCode::kTimeout, "rank 0 timed out with more than 32 operations under way");
    expect_says(status, ErrorCode::kTimeout, "1 (no call yet) never called the oldest");
  });
}

TEST(ErrorsMulti, TimeoutOfAMessageNamesIt) {
  test::run_threads(2, [](Communicator& group) {
    if (group.rank() == 1) return;
    int value = 0;
    const Status status = group.run(Receive{{&value, 4}, 1, 17}, Deadline::after(0ms));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("recv from rank 1 with tag 17"), std::string::npos) << status.message();
  });
}

TEST(ErrorsMulti, AbortWakesSleepersAndIsRemembered) {
  std::latch all_started(3);
  test::run_threads(3, [&](Communicator& group) {
    std::vector<float> data(100'000);
    auto started = group.start(AllReduce{data.data(), data.data(), data.size()});
    all_started.count_down();
    ASSERT_TRUE(started.ok()) << started.status().message();
    if (group.rank() == 2) {
      all_started.wait();
      group.abort("the loss is not a number");
    } else if (group.rank() == 1) {
      expect_says(group.run(Barrier{}, Deadline::never()), ErrorCode::kAborted, "the loss is not a number");
    } else {
      int value = 0;
      expect_says(group.run(Receive{{&value, 4}, kAnySource, 0}, Deadline::never()), ErrorCode::kAborted,
                  "the loss is not a number");
    }
    group.abort("another reason");
    EXPECT_TRUE(started->is_completed());
    (void)started->wait(soon());
    expect_says(group.run(Barrier{}, soon()), ErrorCode::kAborted, "the loss is not a number");
    expect_says(group.start(Barrier{}).status(), ErrorCode::kAborted, "the loss is not a number");
    expect_says(group.health(), ErrorCode::kAborted, "the loss is not a number");
  });
}

TEST(ErrorsMulti, ManyAbortsAtOnceGiveOneReason) {
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> reasons(4);
    test::run_threads(4, [&](Communicator& group) {
      test::run_each(2, [&](int thread) {
        group.abort("rank " + std::to_string(group.rank()) + " thread " + std::to_string(thread));
        EXPECT_FALSE(group.run(Barrier{}, soon()).ok());
      });
      reasons[group.rank()] = group.health().message();
    });
    EXPECT_EQ(reasons, std::vector<std::string>(4, reasons[0]));
    EXPECT_NE(reasons[0].find("thread"), std::string::npos) << reasons[0];
  }
}

TEST(ErrorsMulti, LongReasonsAreCut) {
  test::run_threads(1, [](Communicator& group) {
    group.abort(std::string(5000, 'x'));
    EXPECT_EQ(group.health().message(), std::string(1016, 'x') + "...");
  });
}

TEST(ErrorsMulti, WhoWaitsForARankThatLeftIsToldItsName) {
  auto store = std::make_shared<HashStore>();
  for (const bool async : {false, true}) {
    const std::string name = async ? "async" : "blocking";
    test::run_each(3, [&](int rank) {
      auto group = test::join(store, rank, 3, nullptr, name);
      if (rank == 1) return group.reset();
      float value = 0;
      const AllReduce args{&value, &value, 1};
      Status status;
      if (async) {
        auto operation = group->start(args);
        status = operation.ok() ? operation->wait(soon()) : operation.status();
      } else {
        status = group->run(args, soon());
      }
      expect_says(status, ErrorCode::kPeerFailed, "rank 1 (pid ");
      expect_says(status, ErrorCode::kPeerFailed, "left the group before all_reduce #1 of group '" + name + "'");
      expect_says(status, ErrorCode::kPeerFailed, "if it had fewer batches, DistributedDataParallel's join helps");
    });
  }
}

// Its buffers are gone, so no rank may continue the operation that it has started.
TEST(ErrorsMulti, LeavingWithAnOperationUnderWayBreaksTheGroup) {
  auto store = std::make_shared<HashStore>();
  test::Meeting gone;
  test::run_each(2, [&](int rank) {
    auto group = test::join(store, rank, 2);
    std::vector<float> data(100'000, 1.0F);
    const AllReduce args{data.data(), data.data(), data.size()};
    if (rank == 0) {
      auto operation = group->start(args);
      group.reset();
      EXPECT_TRUE(operation->is_completed());
      expect_says(operation->wait(soon()), ErrorCode::kAborted, "destroyed before this operation was over");
      gone.open();
    } else {
      gone.wait();
      expect_says(group->run(args, soon()), ErrorCode::kPeerFailed, "rank 0 (pid ");
      expect_says(group->health(), ErrorCode::kPeerFailed, "left the group with all_reduce #1 of group 'world' under");
    }
  });
}

TEST(ErrorsMulti, ExhaustedArenaIsToldToAll) {
  auto store = std::make_shared<HashStore>();
  for (const std::size_t count : {std::size_t{500'000}, std::size_t{10'000}}) {
    test::run_each(3, [&](int rank) {
      SharedArenaOptions options;
      if (rank == 1) options.limit = 4096;
      const auto group = test::join(store, rank, 3, SharedArena::create(options).value(), "g" + std::to_string(count));
      test::Spec spec;
      spec.kind = Kind::kAllGather;
      spec.count = count;
      test::Call call(*group, spec, {test::Place::kPrivate, test::Place::kPrivate, false, rank != 0});
      Status status;
      if (rank == 0) {
        auto operation = call.start();
        status = operation.ok() ? operation->wait(soon()) : operation.status();
      } else {
        status = call.run(soon());
      }
      expect_says(status, ErrorCode::kUnavailable, "rank 1 cannot take part in all_gather #1");
      expect_says(status, ErrorCode::kUnavailable, "shared memory exhausted");
    });
  }
}

TEST(ErrorsMulti, AnOperationThatNeverStartedSaysSo) {
  Operation none;
  EXPECT_EQ(none.wait(soon()).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(none.is_completed());
  EXPECT_EQ(none.source(), -1);
  EXPECT_EQ(none.sequence(), 0U);
}

}  // namespace
}  // namespace lockstep::comm
