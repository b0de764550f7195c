#include "lockstep/launch/preemption.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <barrier>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/store/hash_store.h"

namespace lockstep::launch {
namespace {

// A loop whose steps contain a barrier; rank `victim` gets the signal at `when`. Returns the step at which each left.
std::vector<long> leave_steps(int ranks, int victim, long when, unsigned seed) {
  const auto store = std::make_shared<comm::HashStore>();
  std::barrier barrier(ranks);
  std::vector<long> left(static_cast<std::size_t>(ranks), -1);
  std::vector<std::unique_ptr<PreemptionWatch>> watches;
  for (int rank = 0; rank < ranks; ++rank) watches.push_back(PreemptionWatch::start(store, ranks, {}).value());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      PreemptionWatch& watch = *watches[static_cast<std::size_t>(rank)];
      std::mt19937 random(seed + static_cast<unsigned>(rank));
      for (long step = 0; step < 100'000; ++step) {
        if (rank == victim && step == when) watch.request();
        if (watch.should_leave(step).value()) {
          left[static_cast<std::size_t>(rank)] = step;
          return;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        barrier.arrive_and_wait();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return left;
}

TEST(Preemption, AllRanksLeaveAtTheSameStep) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    for (const int ranks : {2, 3, 5}) {
      const auto left = leave_steps(ranks, ranks - 1, 3 + static_cast<long>(seed), seed);
      EXPECT_GE(left[0], 5);
      for (const long step : left) EXPECT_EQ(step, left[0]) << "ranks " << ranks << ", seed " << seed;
    }
  }
}

TEST(Preemption, AWorldOfOneLeavesAtOnce) {
  {
    const auto watch = PreemptionWatch::start(nullptr, 1).value();
    EXPECT_FALSE(watch->should_leave(0).value());
    kill(getpid(), SIGUSR1);
    EXPECT_TRUE(watch->should_leave(1).value());
  }
  const auto next = PreemptionWatch::start(nullptr, 1).value();
  EXPECT_FALSE(next->should_leave(0).value());
}

TEST(Preemption, WhatIsMissingIsNamed) {
  EXPECT_EQ(PreemptionWatch::start(nullptr, 2).status().code(), ErrorCode::kInvalidArgument);
  const Environment two(Environment::Variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  const auto no_store = PreemptionWatch::start(PreemptionWatch::default_signals(), two);
  EXPECT_EQ(no_store.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(no_store.status().message().find("LOCKSTEP_STORE"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::launch
