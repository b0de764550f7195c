#include "lockstep/shm/shared_arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "shm/memory_file.h"
#include "shm/peer.h"
#include "support/forked.h"
#include "support/sizes.h"

namespace lockstep::comm {
namespace {

using test::kMiB;

std::shared_ptr<SharedArena> make_arena(std::size_t limit, std::size_t retain) {
  SharedArenaOptions options;
  options.limit = limit;
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

TEST(SharedArena, GivesEveryAllocationPagesOfItsOwn) {
  const auto arena = make_arena(kMiB, 0);
  for (const std::size_t bytes : {0, 1, 64, 1000, 4095, 4096, 4097, 70'000}) {
    EXPECT_EQ(address(arena->allocate(bytes).value()) % kPage, 0U) << bytes;
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
  EXPECT_GE(arena->first_bytes(), kMiB);
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

TEST(SharedArena, ReturnsAllThatIsRetainedWhenAsked) {
  const auto arena = make_arena(64 * kMiB, 64 * kMiB);
  std::byte* first = filled(*arena, 4 * kMiB);
  std::byte* kept = filled(*arena, kMiB);
  std::byte* last = filled(*arena, 8 * kMiB);
  for (int round = 0; round < 2; ++round) {
    arena->deallocate(first);
    arena->deallocate(last);
    EXPECT_GE(resident(*arena), 13 * kMiB);
    EXPECT_EQ(test::in_fork([&] {
                arena->trim();
                return 0;
              }),
              0);
    EXPECT_GE(resident(*arena), 13 * kMiB) << "a fork has no say";
    arena->trim();
    EXPECT_LE(resident(*arena), 2 * kMiB);
    for (std::size_t i = 0; i < kMiB; ++i) ASSERT_EQ(kept[i], std::byte{0x5a});
    first = filled(*arena, 4 * kMiB);
    last = filled(*arena, 8 * kMiB);
  }
}

TEST(SharedArena, MakesPagesAgainThatWentBackToTheSystem) {
  const auto arena = make_arena(64 * kMiB, 4 * kMiB);
  for (int round = 0; round < 2; ++round) {
    std::byte* const kept = arena->allocate(4 * kMiB).value();
    std::byte* const returned = arena->allocate(8 * kMiB).value();
    EXPECT_GE(resident(*arena), 12 * kMiB) << "made at once, though nothing has touched them";
    arena->deallocate(kept);
    arena->deallocate(returned);
    EXPECT_LE(resident(*arena), 5 * kMiB);
  }
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

// Begins with `first` bytes.
std::shared_ptr<SharedArena> make_growing(std::size_t first, std::size_t retain = 0) {
  SharedArenaOptions options;
  options.first_segment = first;
  options.retain = retain;
  return SharedArena::create(options).value();
}

TEST(SharedArena, GrowsWhenItIsUsedUp) {
  const auto arena = make_growing(64 * 1024);
  std::vector<std::byte*> all;
  for (int i = 0; i < 100; ++i) {
    all.push_back(arena->allocate(100'000).value());
    std::memset(all.back(), i, 100'000);
  }
  EXPECT_GT(arena->segments(), 3U);
  EXPECT_LT(arena->segments(), 40U) << "by a quarter at least";
  std::byte* const large = filled(*arena, 20 * kMiB);  // a segment of its own size
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(arena->contains(all[i], 100'000));
    EXPECT_EQ(arena->at(arena->offset_of(all[i])), all[i]);
    EXPECT_EQ(arena->at(arena->offset_of(all[i] + 99'999)), all[i] + 99'999);
    EXPECT_EQ(all[i][0], std::byte(i));
    EXPECT_EQ(all[i][99'999], std::byte(i));
    EXPECT_FALSE(arena->contains(all[i], 30 * kMiB));
  }
  EXPECT_TRUE(arena->contains(large, 20 * kMiB));
  const std::vector<std::byte> elsewhere(100);
  EXPECT_FALSE(arena->contains(elsewhere.data(), 100));
  EXPECT_EQ(arena->at(std::size_t{1} << 40), nullptr);

  for (std::byte* data : all) arena->deallocate(data);
  arena->deallocate(large);
  EXPECT_EQ(arena->allocated(), 0U);
  EXPECT_LE(resident(*arena), kMiB / 8) << "pages of all segments have gone back";
  const std::size_t segments = arena->segments();
  EXPECT_TRUE(arena->allocate(20 * kMiB).ok());
  EXPECT_EQ(arena->segments(), segments) << "what was freed serves again";
}

TEST(SharedArena, AllocationsNeverCrossSegments) {
  const auto arena = make_growing(64 * 1024);
  std::vector<std::byte*> pages;
  for (int i = 0; i < 200; ++i) pages.push_back(arena->allocate(4096).value());
  for (std::byte* page : pages) arena->deallocate(page);
  // Free neighbours are merged again, but not across the ends of segments.
  std::byte* const data = filled(*arena, 700'000);
  for (std::size_t i = 0; i < 700'000; ++i) ASSERT_EQ(data[i], std::byte{0x5a});
  EXPECT_TRUE(arena->contains(data, 700'000));
}

TEST(SharedArena, GrowsUpToItsLimit) {
  SharedArenaOptions options;
  options.first_segment = 64 * 1024;
  options.limit = 4 * kMiB;
  const auto arena = SharedArena::create(options).value();
  filled(*arena, 3 * kMiB);
  EXPECT_FALSE(arena->allocate(2 * kMiB).ok());
  filled(*arena, kMiB);
  EXPECT_EQ(arena->allocate(1).status().code(), ErrorCode::kUnavailable);
}

TEST(SharedArena, FirstSegmentsLeaveRoomForManyRanks) {
  // The machine's memory, or a thousandth of half the address space.
  const auto arena = SharedArena::create().value();
  EXPECT_LE(arena->first_bytes(), std::size_t{1} << 35);
}

TEST(ArenaView, MapsSegmentsWhenTheyAreNeeded) {
  const auto arena = make_growing(64 * 1024);
  const auto view = ArenaView::map(Fd(fcntl(arena->fd(), F_DUPFD_CLOEXEC, 0)), arena->first_bytes()).value();
  std::vector<std::byte*> all;
  for (int i = 0; i < 20; ++i) {
    all.push_back(arena->allocate(100'000).value());
    std::memset(all.back(), i, 100'000);
  }
  for (int i = 19; i >= 0; --i) {  // the newest first
    const std::size_t offset = arena->offset_of(all[i]);
    ASSERT_TRUE(view->reach(offset).ok());
    ASSERT_NE(view->at(offset), nullptr);
    EXPECT_NE(view->at(offset), all[i]);
    EXPECT_EQ(std::memcmp(view->at(offset), all[i], 100'000), 0);
    view->at(offset)[5] = std::byte{99};
    EXPECT_EQ(all[i][5], std::byte{99});
  }
  EXPECT_EQ(view->at(std::size_t{1} << 40), nullptr);
  EXPECT_EQ(view->reach(std::size_t{1} << 40).code(), ErrorCode::kCorrupt);
}

TEST(ArenaView, FollowsAnArenaThatGrowsMeanwhile) {
  const auto arena = make_growing(16 * 1024);
  const auto view = ArenaView::map(Fd(fcntl(arena->fd(), F_DUPFD_CLOEXEC, 0)), arena->first_bytes()).value();
  constexpr std::size_t kNone = ~std::size_t{0};
  std::atomic<std::size_t> offset{kNone};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&] {
      for (std::size_t seen = kNone; seen != 0;) {
        seen = offset.load(std::memory_order_acquire);
        if (seen == kNone || seen == 0) continue;
        ASSERT_TRUE(view->reach(seen).ok());
        ASSERT_EQ(view->at(seen)[10], std::byte{0x5a});
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    std::byte* const data = filled(*arena, 5000 + 100 * i);
    EXPECT_TRUE(arena->contains(data, 5000));
    offset.store(arena->offset_of(data), std::memory_order_release);
  }
  offset = 0;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(arena->segments(), 5U);
}

TEST(ArenaView, KnowsWhetherTheOwnersProgramRuns) {
  auto arena = make_growing(64 * 1024);
  const auto view = ArenaView::map(Fd(fcntl(arena->fd(), F_DUPFD_CLOEXEC, 0)), arena->first_bytes()).value();
  EXPECT_TRUE(view->owner_runs());
  const pid_t fork = test::fork_to([] {
    pause();
    return 0;
  });
  EXPECT_TRUE(view->owner_runs());
  arena.reset();
  // A fork of the owner does not count as the owner, once it runs.
  EXPECT_TRUE(test::wait_for([&] { return !view->owner_runs(); }));
  kill(fork, SIGKILL);
  test::end_of(fork);
}

// A fork uses its copy of an arena. With `retain` of 0 each deallocation would return pages to the system.
TEST(SharedArena, ForksReadItAndChangeNothing) {
  auto arena = make_growing(64 * 1024);
  std::byte* const first = filled(*arena, 32'000);
  std::byte* const second = filled(*arena, 3 * kMiB);
  EXPECT_EQ(test::in_fork([&] {
              if (first[100] != std::byte{0x5a} || second[kMiB] != std::byte{0x5a}) return 1;
              std::memset(first, 1, 32'000);
              std::memset(second, 1, 3 * kMiB);
              if (first[100] != std::byte{1} || second[kMiB] != std::byte{1}) return 2;
              if (arena->allocate(10).status().code() != ErrorCode::kUnsupported) return 3;
              arena->deallocate(first);
              arena->deallocate(second);
              arena.reset();
              return SharedArena::create().value()->allocate(100).ok() ? 0 : 4;
            }),
            0);
  for (std::size_t i = 0; i < 3 * kMiB; ++i) ASSERT_EQ(second[i], std::byte{0x5a});
  for (std::size_t i = 0; i < 32'000; ++i) ASSERT_EQ(first[i], std::byte{0x5a});
  EXPECT_GE(arena->allocated(), 3 * kMiB);
  EXPECT_TRUE(arena->allocate(kMiB).ok());
}

TEST(SharedArena, ForksWhileOtherThreadsAllocate) {
  const auto arena = make_growing(64 * 1024);
  std::byte* const data = filled(*arena, 50'000);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) arena->deallocate(arena->allocate(200'000).value());
  });
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(test::in_fork([&] {
                arena->deallocate(data);
                return data[1000] == std::byte{0x5a} ? 0 : 1;
              }),
              0);
  }
  stop = true;
  other.join();
  EXPECT_EQ(data[1000], std::byte{0x5a});
}

TEST(SharedArena, OthersSeeWhatIsWritten) {
  const auto arena = make_arena(kMiB, 0);
  std::byte* data = filled(*arena, 8192);
  void* view = mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, arena->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_EQ(static_cast<std::byte*>(view)[arena->offset_of(data) + 8191], std::byte{0x5a});
  munmap(view, kMiB);
}

// A rank that froze in the middle of an operation writes when it goes on.
TEST(SharedArena, WithdrawnMemoryDoesNotChangeWhenOthersWrite) {
  const auto arena = make_arena(32 * kPage, 32 * kPage);
  void* view = mmap(nullptr, 32 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd(), 0);
  ASSERT_NE(view, MAP_FAILED);
  constexpr std::size_t kBytes = 10 * kPage - 960;
  std::byte* data = filled(*arena, kBytes);
  std::byte* neighbour = filled(*arena, 100);
  auto* const others = static_cast<std::byte*>(view) + arena->offset_of(data);
  arena->withdraw(data + 2 * kPage + 1'000, 100);
  arena->withdraw(data + 7 * kPage + 1'000, 100);
  arena->withdraw(data + kPage + 900, 7 * kPage);  // around both
  std::memset(others, 0x11, kBytes);
  EXPECT_EQ(data[0], std::byte{0x11}) << "a page before";
  for (std::size_t i = kPage; i < 9 * kPage; ++i) ASSERT_EQ(data[i], std::byte{0x5a}) << i;
  EXPECT_EQ(data[9 * kPage], std::byte{0x11}) << "a page behind";
  EXPECT_FALSE(arena->contains(data, kBytes));
  EXPECT_FALSE(arena->contains(data + 8 * kPage + 899, 1));
  EXPECT_TRUE(arena->contains(data, kPage));
  EXPECT_TRUE(arena->contains(neighbour, 100));
  others[10 * kPage] = std::byte{0x22};
  EXPECT_EQ(neighbour[0], std::byte{0x22});

  arena->deallocate(data);
  std::byte* next = filled(*arena, kBytes);
  EXPECT_TRUE(next + kBytes <= data || next >= data + kBytes) << "never handed out again";
  std::memset(others, 0x33, kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) ASSERT_EQ(next[i], std::byte{0x5a}) << i;
  munmap(view, 32 * kPage);
}

// A fork has the contents of this process, not what others have written since.
TEST(SharedArena, WithdrawsFromEverySegmentAndFromForks) {
  auto arena = make_growing(16 * kPage);
  const auto view = ArenaView::map(Fd(fcntl(arena->fd(), F_DUPFD_CLOEXEC, 0)), arena->first_bytes()).value();
  constexpr std::size_t kBytes = 8 * kPage - 768;
  std::vector<std::byte*> all{filled(*arena, kBytes)};
  while (arena->segments() < 4) all.push_back(filled(*arena, kBytes));
  for (std::byte* const data : all) {
    arena->withdraw(data + 2 * kPage + 808, 100);
    EXPECT_FALSE(arena->contains(data, kBytes));
    EXPECT_FALSE(arena->contains(data + 2 * kPage + 858, 1));
    EXPECT_TRUE(arena->contains(data, 2 * kPage));
    EXPECT_TRUE(arena->contains(data + 3 * kPage, 2 * kPage));
    ASSERT_TRUE(view->reach(arena->offset_of(data)).ok());
    std::memset(view->at(arena->offset_of(data)), 0x11, kBytes);
    data[2 * kPage + 809] = std::byte{0x77};
  }
  const auto is_as_expected = [&](const std::byte* data) {
    return data[2 * kPage - 1] == std::byte{0x11} && data[2 * kPage] == std::byte{0x5a} &&
           data[2 * kPage + 809] == std::byte{0x77} && data[3 * kPage - 1] == std::byte{0x5a} &&
           data[3 * kPage] == std::byte{0x11};
  };
  EXPECT_TRUE(std::all_of(all.begin(), all.end(), is_as_expected));
  EXPECT_EQ(test::in_fork([&] {
              if (!std::all_of(all.begin(), all.end(), is_as_expected)) return 1;
              for (std::byte* const data : all) std::memset(data, 1, kBytes);
              return 0;
            }),
            0);
  EXPECT_TRUE(std::all_of(all.begin(), all.end(), is_as_expected));
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
