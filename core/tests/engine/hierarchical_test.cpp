// Groups that span machines, which are threads here (run_machines). random_sequences_test.cpp has their results.
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <filesystem>
#include <latch>
#include <thread>

#include "engine/calls.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

// Hundreds of groups at once: each needs little of the system, and gives all of it back.
TEST(HierarchicalGroupMulti, ManyAliveAtOnceAndThenNone) {
  constexpr int kGroups = 150;
  constexpr int kWorld = 2;
  auto store = std::make_shared<HashStore>();
  std::barrier<> together(kWorld);
  std::ptrdiff_t before = 0;
  const auto count_descriptors = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  test::run_each(kWorld, [&](int rank) {
    const auto arena = SharedArena::create().value();
    const auto join = [&](int number) {
      CommunicatorOptions options;
      options.rank = rank;
      options.group_size = kWorld;
      options.name = "group" + std::to_string(number);
      options.machine = "machine" + std::to_string(rank);
      options.arena = arena;
      options.timeout = std::chrono::seconds(30);
      auto group = Communicator::create(store, options);
      EXPECT_TRUE(group.ok()) << group.status().message();
      return group.ok() ? std::move(group).value() : nullptr;
    };
    ASSERT_NE(join(0), nullptr);  // UCX keeps some for the process
    together.arrive_and_wait();
    if (rank == 0) before = count_descriptors();
    together.arrive_and_wait();
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int i = 1; i <= kGroups; ++i) {
      groups.push_back(join(i));
      ASSERT_NE(groups.back(), nullptr) << "group " << i;
    }
    for (int i = 0; i < kGroups; ++i) {
      int value = i + rank;
      ASSERT_TRUE(groups[i]->run(AllReduce{&value, &value, 1}, Deadline::after(std::chrono::seconds(30))).ok());
      ASSERT_EQ(value, 2 * i + 1);
    }
    together.arrive_and_wait();
    if (rank == 0) {
      EXPECT_LE(count_descriptors() - before, 20) << "the groups share their connections";
      EXPECT_EQ(store->num_keys().value(), 0);
    }
    together.arrive_and_wait();
    groups.clear();
    together.arrive_and_wait();
    if (rank == 0) {
      EXPECT_EQ(count_descriptors(), before);
    }
    together.arrive_and_wait();
  });
}

TEST(HierarchicalGroupMulti, AMessageWithinTheMachineFailsWithItsGroup) {
  test::Meeting started;
  test::run_machines({0, 0, 1}, [&](Communicator& group) {
    if (group.rank() == 1) {
      started.wait();
      group.abort("rank 1 has had enough");
    }
    if (group.rank() != 0) return;
    const test::Buffer data(group.arena(), test::Place::kArena, 300'000);
    auto operation = group.start(Send{{data.data(), data.bytes()}, 1, 0});
    started.open();
    const Status status = operation->wait(Deadline::after(std::chrono::seconds(30)));
    EXPECT_EQ(status.code(), ErrorCode::kAborted) << status.message();
    EXPECT_NE(status.message().find("rank 1 has had enough"), std::string::npos) << status.message();
  });
}

TEST(HierarchicalGroupMulti, ACallWaitsForItsTurnUntilItsOwnDeadline) {
  test::Meeting over;
  test::run_machines({0, 1}, [&](Communicator& group) {
    if (group.rank() == 1) return over.wait();
    for (int i = 0; i <= Communicator::kMaxPending; ++i) ASSERT_TRUE(group.start(Barrier{}).ok());
    const Status status = group.run(Barrier{}, Deadline::after(std::chrono::milliseconds(100)));
    EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.message();
    over.open();
  });
}

// Shorter than the time after which ranks send news by themselves.
TEST(HierarchicalGroupMulti, AShortTimeoutNamesNobodyWhoHasCome) {
  std::latch started(4);
  std::latch over(4);
  test::run_machines({0, 0, 1, 1}, [&](Communicator& group) {
    Operation barrier;
    if (group.rank() != 3) barrier = group.start(Barrier{}).value();
    started.arrive_and_wait();
    if (group.rank() != 3) {
      const Status status = barrier.wait(Deadline::after(std::chrono::milliseconds(5)));
      EXPECT_EQ(status.code(), ErrorCode::kTimeout);
      EXPECT_NE(status.message().find("rank(s) 3 (on "), std::string::npos) << status.message();
      EXPECT_EQ(group.absent(group.sequence()), std::vector<int>{3});
    }
    // Every rank answers for its machine until all are through, as one thread may be held up for long.
    over.count_down();
    while (!over.try_wait()) {
      group.progress();
      std::this_thread::yield();
    }
  });
}

// After lists of different lengths the ranks make different sequences of calls, so no later result could be right.
TEST(ListsMulti, OfDifferentLengthsBreakTheGroupOnEveryRank) {
  for (const std::vector<int>& machines : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1}}) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{100'000}}) {
      test::run_machines(machines, [&](Communicator& group) {
        std::vector<float> data(count, 1.0F);
        AllReduce args{data.data(), data.data(), count};
        args.list = group.rank() == 1 ? 3 : 2;
        Status first;
        for (int i = 0; i < args.list; ++i) {
          const Status status = group.run(args, Deadline::after(std::chrono::seconds(30)));
          if (first.ok()) first = status;
        }
        EXPECT_EQ(first.code(), ErrorCode::kMismatch);
        EXPECT_NE(first.message().find("in a list of 3"), std::string::npos) << first.message();
        EXPECT_EQ(group.run(Barrier{}, Deadline::after(std::chrono::seconds(30))).message(), first.message());
      });
    }
  }
}

// The others know one another from a rendezvous, so nothing but the group itself can miss rank 3.
TEST(HierarchicalGroupFault, AKnownMemberThatDoesNotComeIsNamedOnEveryMachine) {
  auto store = std::make_shared<HashStore>();
  std::vector<Member> members;
  for (int rank = 0; rank < 4; ++rank) {
    members.push_back({rank, 4, getpid(), "machine" + std::to_string(rank % 2), "node" + std::to_string(rank % 2)});
  }
  test::run_each(3, [&](int rank) {
    CommunicatorOptions options;
    options.rank = rank;
    options.group_size = 4;
    options.timeout = std::chrono::seconds(5);  // much longer than the others need to come
    options.members = members;
    const Status status = Communicator::create(store, options).status();
    EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.message();
    EXPECT_NE(status.message().find("rank(s) 3 of the world did not join"), std::string::npos) << status.message();
  });
}

}  // namespace
}  // namespace lockstep::comm
