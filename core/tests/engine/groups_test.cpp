// Several groups, several threads, operations without a wait, and that a group leaves nothing behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>

#include "engine/calls.h"
#include "support/effort.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

using test::Place;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

std::ptrdiff_t count_descriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// Counts mappings of shared memory only: stacks, the heap and a sanitizer's memory come and go.
std::ptrdiff_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::ptrdiff_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:lockstep") != std::string::npos;
  return count;
}

TEST(GroupsMulti, InterleaveOperationsOfSeveralGroups) {
  constexpr int kWorld = 3;
  auto store = std::make_shared<HashStore>();
  test::run_each(kWorld, [&](int rank) {
    const auto arena = SharedArena::create().value();
    std::vector<std::unique_ptr<Communicator>> groups;
    for (const char* name : {"a", "b", "c"}) groups.push_back(test::join(store, rank, kWorld, arena, name));
    std::mt19937_64 common(7);
    std::mt19937_64 own(rank);
    std::vector<std::pair<std::shared_ptr<test::Call>, Operation>> under_way;
    for (int step = 0; step < 200; ++step) {
      Communicator& group = *groups[common() % 3];
      const test::Spec spec = test::random_spec(common, kWorld, 20'000);
      auto call = std::make_shared<test::Call>(group, spec, test::random_style(own));
      if (call->style().blocking) {
        const Status status = call->run(soon());
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_NO_FATAL_FAILURE(call->check());
      } else {
        auto operation = call->start();
        ASSERT_TRUE(operation.ok()) << operation.status().message();
        under_way.emplace_back(std::move(call), *operation);
      }
    }
    for (auto& [call, operation] : under_way) {
      const Status status = operation.wait(soon());
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_NO_FATAL_FAILURE(call->check());
    }
  });
}

// A rank that has started an operation and then waits in another group does not hold up the others.
TEST(GroupsMulti, AStartedOperationNeedsNoFurtherHelp) {
  auto store = std::make_shared<HashStore>();
  for (const Kind kind : {Kind::kScatter, Kind::kBroadcast, Kind::kAllToAll, Kind::kReduceScatter, Kind::kAllGather,
                          Kind::kGather, Kind::kAllReduce, Kind::kReduce}) {
    for (const std::size_t count : {100, 6000, 100'000}) {
      const std::string name = std::to_string(static_cast<int>(kind)) + "-" + std::to_string(count);
      test::run_each(3, [&](int rank) {
        const auto arena = SharedArena::create().value();
        const auto first = test::join(store, rank, 3, arena, "first" + name);
        const auto second = test::join(store, rank, 3, arena, "second" + name);
        test::Spec spec;
        spec.kind = kind;
        spec.count = count;
        const bool early = rank == 2;
        const Place place = rank == 1 ? Place::kArena : Place::kPrivate;
        test::Call call(*first, spec, {place, place, false, !early});
        if (early) {
          auto operation = call.start();
          ASSERT_TRUE(second->run(Barrier{}, soon()).ok());
          ASSERT_TRUE(operation->wait(soon()).ok());
        } else {
          const Status status = call.run(soon());
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_TRUE(second->run(Barrier{}, soon()).ok());
        }
        call.check();
      });
    }
  }
}

// One thread's operations and another's take turns in any order; each kind of call is its own order on every rank.
TEST(GroupsMulti, TwoThreadsOfARankUseTheirOwnGroups) {
  auto store = std::make_shared<HashStore>();
  test::run_each(6, [&](int i) {
    const auto group = test::join(store, i % 3, 3, nullptr, i < 3 ? "blocking" : "async");
    ASSERT_NO_FATAL_FAILURE(test::run_random_sequence(*group, 11, 100, 20'000));
  });
}

// Every operation is the same, so that any order of the two threads matches on all ranks.
TEST(GroupsMulti, TwoThreadsOfARankShareAGroup) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{10'000}, std::size_t{300'000}}) {
    test::run_threads(3, [count](Communicator& group) {
      const auto work = [&](bool blocking) {
        for (int i = 0; i < test::repetitions(60); ++i) {
          std::vector<float> data(count, static_cast<float>(group.rank()));
          const AllReduce args{data.data(), data.data(), count};
          if (blocking) {
            const Status status = group.run(args, soon());
            ASSERT_TRUE(status.ok()) << status.message();
          } else {
            auto operation = group.start(args);
            ASSERT_TRUE(operation.ok()) << operation.status().message();
            const Status status = operation->wait(soon());
            ASSERT_TRUE(status.ok()) << status.message();
          }
          ASSERT_EQ(std::count(data.begin(), data.end(), 3.0F), static_cast<std::ptrdiff_t>(count));
        }
      };
      test::run_each(2, [&](int thread) { work(thread == 0); });
    });
  }
}

TEST(GroupsMulti, DroppedOperationsCompleteAndLetTheirBuffersGo) {
  test::run_threads(3, [](Communicator& group) {
    std::vector<std::weak_ptr<test::Call>> calls;
    test::Spec spec;
    spec.kind = Kind::kAllReduce;
    for (int i = 0; i < 100; ++i) {
      spec.count = 100 * static_cast<std::size_t>(i);
      spec.seed = i;
      const Place place = i % 2 == 0 ? Place::kArena : Place::kPrivate;
      auto call = std::make_shared<test::Call>(group, spec, test::Style{place, place, i % 3 == 0, false});
      calls.push_back(call);
      ASSERT_TRUE(call->start(call).ok());
    }
    ASSERT_TRUE(group.run(Barrier{}, soon()).ok());
    // Others may still be inside the last of them.
    const Deadline patience = soon();
    while (std::any_of(calls.begin(), calls.end(), [](const auto& call) { return !call.expired(); })) {
      ASSERT_FALSE(patience.expired());
      group.progress();
      std::this_thread::yield();
    }
    ASSERT_TRUE(group.run(Barrier{}, soon()).ok());
  });
}

TEST(GroupsMulti, ManyComeAndGoAndLeaveNothing) {
  constexpr int kWorld = 3;
  auto store = std::make_shared<HashStore>();
  std::vector<std::shared_ptr<SharedArena>> arenas;
  for (int rank = 0; rank < kWorld; ++rank) arenas.push_back(SharedArena::create().value());
  const auto round = [&](const std::string& name) {
    test::run_each(kWorld, [&](int rank) {
      const auto group = test::join(store, rank, kWorld, arenas[rank], name);
      // The last use is a stream through memory that goes with the group.
      std::vector<float> data(300'000, static_cast<float>(rank));
      ASSERT_TRUE(group->run(AllReduce{data.data(), data.data(), data.size()}, soon()).ok());
      ASSERT_EQ(std::count(data.begin(), data.end(), 3.0F), 300'000);
    });
  };
  round("warm-up");
  const std::ptrdiff_t descriptors = count_descriptors();
  const std::ptrdiff_t mappings = count_mappings();
  for (int i = 0; i < test::repetitions(120); ++i) ASSERT_NO_FATAL_FAILURE(round("group" + std::to_string(i)));
  EXPECT_EQ(count_descriptors(), descriptors);
  EXPECT_EQ(count_mappings(), mappings);
  for (const auto& arena : arenas) EXPECT_EQ(arena->allocated(), 0U);
}

TEST(GroupsMulti, ManyAtOnceShareMappingsAndProcessHandles) {
  auto store = std::make_shared<HashStore>();
  const std::ptrdiff_t before = count_descriptors();
  test::run_each(2, [&](int rank) {
    const auto arena = SharedArena::create().value();
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int i = 0; i < 150; ++i) groups.push_back(test::join(store, rank, 2, arena, std::to_string(i)));
    for (const auto& group : groups) ASSERT_TRUE(group->run(Barrier{}, soon()).ok());
    EXPECT_LE(count_descriptors(), before + 30);
    ASSERT_TRUE(groups[0]->run(Barrier{}, soon()).ok());
  });
  EXPECT_EQ(count_descriptors(), before);
}

// The last operation of a rank that then leaves must not look like a failure to the others.
TEST(GroupsMulti, LeavingAfterTheLastBarrierDisturbsNobody) {
  auto store = std::make_shared<HashStore>();
  test::run_each(4, [&](int rank) {
    const auto arena = SharedArena::create().value();
    for (int i = 0; i < 200; ++i) {
      const auto group = test::join(store, rank, 4, arena, std::to_string(i));
      const Status status = group->run(Barrier{}, soon());
      ASSERT_TRUE(status.ok()) << status.message();
    }
  });
}

// Such groups share what connects the machines.
class GroupsOverMachinesMulti : public testing::Test {
 protected:
  // Two ranks, each on its machine.
  std::unique_ptr<Communicator> join(int rank, const std::string& name) {
    CommunicatorOptions options;
    options.rank = rank;
    options.group_size = 2;
    options.name = name;
    options.machine = "machine" + std::to_string(rank);
    options.timeout = std::chrono::seconds(30);
    auto group = Communicator::create(store_, options);
    EXPECT_TRUE(group.ok()) << group.status().message();
    return group.ok() ? std::move(group).value() : nullptr;
  }

 private:
  std::shared_ptr<HashStore> store_ = std::make_shared<HashStore>();
};

// Each has its own group, with collectives and messages.
TEST_F(GroupsOverMachinesMulti, ServeTwoThreadsOfEachRank) {
  constexpr int kMessages = 60;
  test::run_each(4, [&](int i) {
    const int rank = i % 2;
    const auto group = join(rank, i < 2 ? "first" : "second");
    ASSERT_NE(group, nullptr);
    ASSERT_NO_FATAL_FAILURE(test::run_random_sequence(*group, i < 2 ? 3 : 4, 60, 100'000, {0, 1}));
    for (int message = 0; message < test::repetitions(kMessages); ++message) {
      const std::size_t bytes = message % 5 == 0 ? 300'000 : 1000;
      const std::string data(bytes, static_cast<char>('a' + (i < 2 ? 0 : 10) + rank));
      std::string got(bytes, ' ');
      auto sent = group->start(Send{{data.data(), bytes}, 1 - rank, message});
      ASSERT_TRUE(sent.ok());
      ASSERT_TRUE(group->run(Receive{{got.data(), bytes}, 1 - rank, message}, soon()).ok());
      ASSERT_TRUE(sent->wait(soon()).ok());
      ASSERT_EQ(got, std::string(bytes, static_cast<char>('a' + (i < 2 ? 0 : 10) + 1 - rank)));
    }
  });
}

TEST_F(GroupsOverMachinesMulti, GoOnWhenAnotherBreaksOrEnds) {
  std::latch broken(2);
  test::run_each(2, [&](int rank) {
    const auto stays = join(rank, "stays");
    auto breaks = join(rank, "breaks");
    auto ends = join(rank, "ends");
    std::vector<float> data(1'000'000, 1.0F);
    const auto add_up = [&](Communicator& group) {
      return group.run(AllReduce{data.data(), data.data(), data.size()}, soon());
    };
    for (Communicator* const group : {stays.get(), breaks.get(), ends.get()}) ASSERT_TRUE(add_up(*group).ok());
    auto operation = stays->start(AllReduce{data.data(), data.data(), data.size()});
    ASSERT_TRUE(operation.ok());
    // This large message stays with its sender, because nobody asks for it.
    auto message = breaks->start(Send{{data.data(), data.size()}, 1 - rank, 1});
    if (rank == 0) {
      breaks->abort("rank 0 has had enough");
    } else {
      EXPECT_EQ(add_up(*breaks).code(), ErrorCode::kAborted);
    }
    EXPECT_EQ(message->wait(soon()).code(), ErrorCode::kAborted);
    broken.arrive_and_wait();
    EXPECT_TRUE(operation->wait(soon()).ok());
    ends.reset();
    for (int i = 0; i < 5; ++i) {
      const Status status = add_up(*stays);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    breaks.reset();
    EXPECT_TRUE(add_up(*stays).ok());
  });
}

}  // namespace
}  // namespace lockstep::comm
