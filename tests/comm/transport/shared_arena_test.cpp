#include "lockstep/comm/transport/shared_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <thread>
#include <vector>

namespace lockstep::comm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::shared_ptr<SharedArena> make_arena(std::size_t reserve, std::size_t retain) {
  SharedArenaOptions options;
  options.reserve = reserve;
  options.retain = retain;
  return SharedArena::create(options).value();
}

std::size_t resident(const SharedArena& arena) {
  struct stat info {};
  EXPECT_EQ(fstat(arena.fd(), &info), 0);
  return static_cast<std::size_t>(info.st_blocks) * 512;
}

std::byte* filled(SharedArena& arena, std::size_t bytes) {
  std::byte* data = arena.allocate(bytes).value();
  std::memset(data, 0x5a, bytes);
  return data;
}

std::uintptr_t address(const std::byte* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

TEST(SharedArena, AlignsToLinesAndPages) {
  const auto arena = make_arena(kMiB, 0);
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 1000, 4095}) {
    EXPECT_EQ(address(arena->allocate(bytes).value()) % 64, 0U) << bytes;
  }
  for (const std::size_t bytes : {4096, 4097, 70'000}) {
    EXPECT_EQ(address(arena->allocate(bytes).value()) % 4096, 0U) << bytes;
  }
}

TEST(SharedArena, ReusesWhatIsFreed) {
  const auto arena = make_arena(kMiB, kMiB);
  std::byte* first = filled(*arena, 100'000);
  EXPECT_GE(arena->allocated(), 100'000U);
  arena->deallocate(first);
  EXPECT_EQ(arena->allocated(), 0U);
  EXPECT_EQ(arena->allocate(100'000).value(), first);
}

TEST(SharedArena, TakesNoMemoryBeforeItIsUsed) {
  const auto arena = SharedArena::create().value();
  EXPECT_GE(arena->reserve(), 64 * kMiB);
  EXPECT_EQ(resident(*arena), 0U);
}

TEST(SharedArena, RetainsUpToTheLimitAndReturnsTheRest) {
  const auto arena = make_arena(64 * kMiB, 4 * kMiB);
  std::byte* small = filled(*arena, 4 * kMiB);
  std::byte* large = filled(*arena, 8 * kMiB);
  std::byte* kept = filled(*arena, kMiB);
  EXPECT_GE(resident(*arena), 13 * kMiB);
  arena->deallocate(small);
  EXPECT_GE(resident(*arena), 13 * kMiB) << "what is retained stays";
  arena->deallocate(large);
  EXPECT_LE(resident(*arena), 6 * kMiB) << "what is more than that goes back to the system";
  for (std::size_t i = 0; i < kMiB; ++i) ASSERT_EQ(kept[i], std::byte{0x5a});
}

TEST(SharedArena, ReturningPagesSparesNeighboursOnTheSamePage) {
  const auto arena = make_arena(kMiB, 0);
  std::byte* before = filled(*arena, 64);
  std::byte* middle = filled(*arena, 4000);
  std::byte* after = filled(*arena, 64);
  arena->deallocate(middle);
  for (int i = 0; i < 64; ++i) {
    ASSERT_EQ(before[i], std::byte{0x5a});
    ASSERT_EQ(after[i], std::byte{0x5a});
  }
}

TEST(SharedArena, SaysHowMuchWasWantedAndIsInUse) {
  const auto arena = make_arena(kMiB, 0);
  filled(*arena, kMiB / 2);
  for (const std::size_t bytes : {kMiB, ~std::size_t{0}, ~std::size_t{0} - 100}) {
    const auto refused = arena->allocate(bytes);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), ErrorCode::kUnavailable);
    EXPECT_NE(refused.status().message().find(std::to_string(bytes) + " bytes wanted, 524288 of 1048576 in use"),
              std::string::npos)
        << refused.status().message();
  }
}

TEST(SharedArena, ContainsOnlyWholeRangesOfItsOwn) {
  const auto arena = make_arena(kMiB, 0);
  const std::byte* base = arena->base();
  EXPECT_TRUE(arena->contains(base, kMiB));
  EXPECT_TRUE(arena->contains(base + kMiB, 0));
  EXPECT_TRUE(arena->contains(base + kMiB - 1, 1));
  EXPECT_FALSE(arena->contains(base + kMiB - 1, 2));
  EXPECT_FALSE(arena->contains(base, kMiB + 1));
  EXPECT_FALSE(arena->contains(base - 1, 1));
  EXPECT_FALSE(arena->contains(base + 1, ~std::size_t{0}));
  EXPECT_FALSE(arena->contains(nullptr, 0));
  int local = 0;
  EXPECT_FALSE(arena->contains(&local, sizeof(local)));
}

TEST(SharedArena, OthersSeeWhatIsWritten) {
  const auto arena = make_arena(kMiB, 0);
  std::byte* data = filled(*arena, 8192);
  void* view = mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, arena->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_EQ(static_cast<std::byte*>(view)[arena->offset_of(data) + 8191], std::byte{0x5a});
  munmap(view, kMiB);
}

TEST(SharedArena, ServesSeveralThreads) {
  const auto arena = make_arena(64 * kMiB, kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const std::size_t bytes = 1 + (i * 7919) % 50'000;
        std::byte* data = arena->allocate(bytes).value();
        std::memset(data, t, bytes);
        for (std::size_t k = 0; k < bytes; k += 512) ASSERT_EQ(data[k], std::byte(t));
        arena->deallocate(data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->allocated(), 0U);
}

}  // namespace
}  // namespace lockstep::comm
