// Every collective by world, size, place and way of calling, within a machine; every reduction over machines too.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "engine/calls.h"
#include "reduce/copy.h"
#include "support/effort.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

using test::Place;
using test::Spec;
using test::Style;

constexpr auto kPatience = std::chrono::seconds(40);
constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kReduce,        Kind::kBroadcast, Kind::kAllGather, Kind::kGather,
                           Kind::kScatter,   Kind::kReduceScatter, Kind::kAllToAll,  Kind::kBarrier};

void make_call(Communicator& group, const Spec& spec, const Style& style) {
  test::Call call(group, spec, style);
  if (style.blocking) {
    const Status status = call.run(Deadline::after(kPatience));
    ASSERT_TRUE(status.ok()) << status.message();
  } else {
    auto operation = call.start();
    ASSERT_TRUE(operation.ok()) << operation.status().message();
    const Status status = operation->wait(Deadline::after(kPatience));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  call.check();
}

// All styles; `shift` makes ranks differ from one another.
void make_calls(Communicator& group, Spec spec, int shift) {
  for (int i = 0; i < 8; ++i) {
    const int choice = (i + shift * group.rank()) % 8;
    Style style;
    style.input = style.output = choice % 2 == 0 ? Place::kArena : Place::kPrivate;
    style.in_place = choice / 2 % 2 == 0;
    style.blocking = choice / 4 == 0;
    spec.root = i % group.group_size();
    spec.seed += 1;
    ASSERT_NO_FATAL_FAILURE(make_call(group, spec, style));
  }
}

class OperationsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, OperationsMulti, testing::Values(1, 2, 3, 4, 7));

TEST_P(OperationsMulti, EveryKindSizePlaceAndWay) {
  test::run_threads(GetParam(), [](Communicator& group) {
    constexpr std::size_t kEdge = Communicator::kInlineBytes;
    for (const Kind kind : kKinds) {
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{4}, std::size_t{16}, std::size_t{20}, kEdge - 4,
                                      kEdge, kEdge + 4, std::size_t{9000}, std::size_t{100'004}}) {
        for (const bool even : {true, false}) {
          const bool list = kind >= Kind::kAllGather && kind <= Kind::kAllToAll;
          if (!even && !list) continue;
          Spec spec;
          spec.kind = kind;
          spec.count = bytes / 4;
          spec.even = even;
          spec.seed = bytes + static_cast<int>(kind);
          ASSERT_NO_FATAL_FAILURE(make_calls(group, spec, /*shift=*/bytes % 3 == 0 ? 0 : 3));
        }
      }
    }
  });
}

// These sizes let the chunks of streams and the tickets end at uneven places.
TEST_P(OperationsMulti, ManyTicketsAndStreamPiecesWithTails) {
  test::run_threads(GetParam(), [](Communicator& group) {
    for (const DataType type : {DataType::kFloat32, DataType::kComplex128}) {
      for (const Kind kind : kKinds) {
        const bool list = kind >= Kind::kAllGather && kind <= Kind::kAllToAll;
        Spec spec;
        spec.kind = kind;
        spec.type = type;
        spec.even = type == DataType::kFloat32;
        spec.count = (list ? 300'000 : 2'500'000) / size_of(type) + 13;
        spec.root = group.group_size() - 1;
        for (const bool blocking : {true, false}) {
          for (const Place place : {Place::kArena, Place::kPrivate}) {
            ASSERT_NO_FATAL_FAILURE(make_call(group, spec, Style{place, place, kind == Kind::kAllReduce, blocking}));
          }
        }
      }
    }
  });
}

// Ranks of one machine, and a machine with one rank beside others of its kind, and beside one with more.
class ReductionsOnMachinesMulti : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Shapes, ReductionsOnMachinesMulti,
                         testing::Values(std::vector{0, 0, 0}, std::vector{0, 1}, std::vector{0, 1, 2},
                                         std::vector{0, 1, 1}));

TEST_P(ReductionsOnMachinesMulti, EveryTypeAndReduction) {
  test::run_machines(GetParam(), [](Communicator& group) {
    for (int type = 0; type < kNumDataTypes; ++type) {
      for (int op = 0; op < kNumReduceOps; ++op) {
        Spec spec;
        spec.kind = Kind::kAllReduce;
        spec.type = static_cast<DataType>(type);
        spec.op = static_cast<ReduceOp>(op);
        if (GetParam().back() != 0) spec.machine_of = GetParam();
        if (!is_supported(spec.type, spec.op)) continue;
        for (const std::size_t count : {1, 500, 20'000}) {
          spec.count = count;
          ASSERT_NO_FATAL_FAILURE(make_call(group, spec, Style{}));
          ASSERT_NO_FATAL_FAILURE(make_call(group, spec, Style{Place::kPrivate, Place::kPrivate, true, true}));
        }
      }
    }
    Spec chunks;  // several, the last one with a tail
    chunks.kind = Kind::kAllReduce;
    chunks.count = 400'003;
    if (GetParam().back() != 0) chunks.machine_of = GetParam();
    for (const bool in_place : {false, true}) {
      ASSERT_NO_FATAL_FAILURE(make_call(group, chunks, Style{Place::kArena, Place::kPrivate, in_place, false}));
    }
  });
}

// Some inputs can be read in place and others must be staged; some ranks do not block.
TEST_P(OperationsMulti, PlacesAndWaysMixedInLargeOperations) {
  test::run_threads(GetParam(), [](Communicator& group) {
    for (const Kind kind : kKinds) {
      for (int round = 0; round < 4; ++round) {
        Spec spec;
        spec.kind = kind;
        spec.count = 90'001;
        spec.root = round % group.group_size();
        spec.seed = round;
        const bool mine_shared = (group.rank() + round) % 2 == 0;
        const Place place = mine_shared ? Place::kArena : Place::kPrivate;
        const bool blocking = round < 2 || (group.rank() + round) % 3 != 0;
        ASSERT_NO_FATAL_FAILURE(make_call(group, spec, Style{place, Place::kPrivate, false, blocking}));
      }
    }
  });
}

// Between streams of all kinds, a place in the staging is never written while others still read it.
TEST_P(OperationsMulti, StreamsFollowOneAnother) {
  test::run_threads(GetParam(), [](Communicator& group) {
    std::mt19937_64 common(11);
    for (int step = 0; step < test::repetitions(80); ++step) {
      Spec spec;
      spec.kind = kKinds[common() % std::size(kKinds)];
      spec.count = 10'000 + common() % 200'000;
      spec.even = common() % 2 == 0;
      spec.root = static_cast<int>(common() % group.group_size());
      spec.seed = common();
      ASSERT_NO_FATAL_FAILURE(make_call(group, spec, Style{Place::kPrivate, Place::kPrivate, step % 2 == 0, true}));
    }
  });
}

// Results that are written past the caches, with a tail.
TEST(LargeResultsMulti, ArriveWhole) {
  test::run_threads(2, [](Communicator& group) {
    for (const Kind kind : {Kind::kReduce, Kind::kBroadcast, Kind::kAllGather, Kind::kReduceScatter}) {
      Spec spec;
      spec.kind = kind;
      spec.count = kLargeResults / sizeof(float) / (kind == Kind::kAllGather ? 4 : 1) + 5;
      if (kind == Kind::kReduceScatter) spec.count /= 2;
      for (const Place place : {Place::kArena, Place::kPrivate}) {
        ASSERT_NO_FATAL_FAILURE(make_call(group, spec, Style{place, place, false, true}));
      }
    }
  });
}

// Not by the library's own kernels: added one after the other, as written here.
TEST(ReductionsMulti, FloatSumsAreTheRankOrderSums) {
  test::run_threads(4, [](Communicator& group) {
    for (const std::size_t count : {3, 2000, 2049, 100'003, 700'001}) {
      Spec spec;
      spec.seed = count;
      std::vector<float> expected(count);
      for (int rank = 0; rank < 4; ++rank) {
        const auto bytes = test::contribution(spec, rank, 0, count);
        const auto* values = reinterpret_cast<const float*>(bytes.data());
        for (std::size_t i = 0; i < count; ++i) expected[i] = rank == 0 ? values[i] : expected[i] + values[i];
      }
      for (const Place place : {Place::kArena, Place::kPrivate}) {
        const test::Buffer data(group.arena(), place, count * sizeof(float));
        const auto mine = test::contribution(spec, group.rank(), 0, count);
        std::memcpy(data.data(), mine.data(), mine.size());
        ASSERT_TRUE(group.run(AllReduce{data.data(), data.data(), count}, Deadline::after(kPatience)).ok());
        ASSERT_EQ(std::memcmp(data.data(), expected.data(), count * sizeof(float)), 0) << count;
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::comm
