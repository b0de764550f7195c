// Groups whose arenas grow while they are in use, and more of them than fit into an address space at full size.
#include <gtest/gtest.h>

#include "engine/calls.h"
#include "support/effort.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kFirstSegment = std::size_t{16} << 10;

// Its first segment is small and in use, so that nearly everything, staging too, lies in later segments.
std::shared_ptr<SharedArena> growing_arena() {
  SharedArenaOptions options;
  options.first_segment = kFirstSegment;
  options.retain = 0;
  auto arena = SharedArena::create(options).value();
  while (arena->segments() < 3) EXPECT_TRUE(arena->allocate(kFirstSegment).ok());  // never freed
  return arena;
}

class SegmentsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SegmentsMulti, testing::Values(1, 2, 3, 4, 7));

// Collectives of all kinds and messages, blocking and started, from and to shared and private memory.
TEST_P(SegmentsMulti, RandomOperations) {
  auto store = std::make_shared<HashStore>();
  test::run_each(GetParam(), [&](int rank) {
    const auto arena = growing_arena();
    const auto group = test::join(store, rank, GetParam(), arena);
    ASSERT_NE(group, nullptr);
    ASSERT_NO_FATAL_FAILURE(test::run_random_sequence(*group, 21, test::repetitions(60), /*max_count=*/20'000));
    ASSERT_NO_FATAL_FAILURE(test::run_random_sequence(*group, 22, test::repetitions(6), /*max_count=*/300'000));
    // A second group of the same arenas.
    const auto second = test::join(store, rank, GetParam(), arena, "second");
    ASSERT_NE(second, nullptr);
    ASSERT_NO_FATAL_FAILURE(test::run_random_sequence(*second, 23, test::repetitions(20), /*max_count=*/60'000));
  });
}

TEST(WideSegmentsMulti, RandomOperations) {
  const std::vector<int> machine_of{0, 1, 0, 1};
  auto store = std::make_shared<HashStore>();
  test::run_each(4, [&](int rank) {
    CommunicatorOptions options;
    options.rank = rank;
    options.group_size = 4;
    options.timeout = 30s;
    options.machine = "machine" + std::to_string(machine_of[rank]);
    options.arena = growing_arena();
    auto group = Communicator::create(store, options);
    ASSERT_TRUE(group.ok()) << group.status().message();
    test::run_random_sequence(**group, 24, test::repetitions(40), 20'000, machine_of);
  });
}

// 40 ranks that may each use 4 TiB: 160 TiB, of the 128 TiB of address space of a process. Each uses some of them.
TEST(ManyArenasMulti, ReservesThatTogetherPassTheAddressSpace) {
#if defined(__SANITIZE_THREAD__)
  constexpr int kWorld = 10;  // with a tenth of the address space
#else
  constexpr int kWorld = 40;
#endif
  constexpr std::size_t kBytes = std::size_t{64} << 30;
  constexpr std::size_t kCount = 10'000;
  auto store = std::make_shared<HashStore>();
  test::run_each(kWorld, [&](int rank) {
    SharedArenaOptions options;
    options.limit = std::size_t{4} << 40;
    const auto arena = SharedArena::create(options).value();
    const auto group = test::join(store, rank, kWorld, arena, "world", 100s);
    ASSERT_NE(group, nullptr);
    auto large = arena->allocate(kBytes, SharedArena::Pages::kWhenTouched);
    ASSERT_TRUE(large.ok()) << large.status().message();
    EXPECT_GT(arena->segments(), 1U);
    auto* const values = reinterpret_cast<float*>(*large + kBytes - kCount * sizeof(float));
    for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(rank + i % 5);
    const Status status = group->run(AllReduce{values, values, kCount}, Deadline::after(100s));
    ASSERT_TRUE(status.ok()) << status.message();
    constexpr int kSumOfRanks = kWorld * (kWorld - 1) / 2;
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(values[i], static_cast<float>(kSumOfRanks + kWorld * (i % 5))) << i;
  });
}

}  // namespace
}  // namespace lockstep::comm
