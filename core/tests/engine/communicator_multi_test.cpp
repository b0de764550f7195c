// The same engine between processes: what threads of one process cannot show.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/calls.h"
#include "engine/process_group.h"
#include "support/process_ranks.h"

namespace lockstep::comm {
namespace {

TEST(CommunicatorMulti, RandomSequencesBetweenProcesses) {
  for (const int world : {3, 4}) {
    test::run_processes(world, [](int) {
      const test::ProcessGroup group;
      for (const std::uint64_t seed : {21, 22, 23}) test::run_random_sequence(*group, seed, 150, 30'000);
      test::run_random_sequence(*group, 24, 12, 400'000);
    });
  }
}

TEST(CommunicatorMulti, ArenaTensorsOfOtherProcessesAreReducedInPlace) {
  test::run_processes(2, [](int rank) {
    const test::ProcessGroup group;
    const test::Buffer data(group->arena(), test::Place::kArena, 4'000'000);
    auto* values = reinterpret_cast<float*>(data.data());
    std::fill_n(values, 1'000'000, 1.0F + static_cast<float>(rank));
    ASSERT_TRUE(group->run(AllReduce{values, values, 1'000'000}, Deadline::after(std::chrono::seconds(30))).ok());
    ASSERT_EQ(std::accumulate(values, values + 1'000'000, 0.0), 3'000'000.0);
  });
}

}  // namespace
}  // namespace lockstep::comm
