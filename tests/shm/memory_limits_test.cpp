#include "shm/memory_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "lockstep/shm/shared_arena.h"
#include "support/forked.h"
#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Control groups in a folder of their own.
class Cgroups : public testing::Test {
 protected:
  void say(const std::string& file, const std::string& text) { scratch_.write(file, text + "\n"); }
  std::size_t limit() { return cgroup_memory_limit(scratch_.path("memberships"), scratch_.path("mount")); }

 private:
  test::ScratchFolder scratch_;
};

TEST_F(Cgroups, TheSmallestOfAGroupAndThoseAboveItCounts) {
  say("memberships", "0::/jobs/7/step");
  say("mount/jobs/7/step/memory.max", "max");
  EXPECT_EQ(limit(), kNoLimit);
  say("mount/jobs/memory.max", "5000000000");
  EXPECT_EQ(limit(), 5'000'000'000U);
  say("mount/jobs/7/step/memory.max", "1000000");
  say("mount/jobs/7/memory.max", "2000000");
  EXPECT_EQ(limit(), 1'000'000U);
}

TEST_F(Cgroups, AContainerSeesItsOwnGroupAsTheRoot) {
  say("memberships", "0::/");
  say("mount/memory.max", "4096000");
  EXPECT_EQ(limit(), 4'096'000U);
  say("memberships", "0::/outside/docker-123");  // under the name that it has outside
  EXPECT_EQ(limit(), 4'096'000U);
}

TEST_F(Cgroups, VersionOneHasTheMemoryControllerElsewhere) {
  say("memberships", "12:cpu,cpuacct:/a\n7:memory:/a/b\n0::/c");
  say("mount/memory/a/memory.limit_in_bytes", "7000000");
  say("mount/memory/a/b/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(limit(), 7'000'000U);
}

TEST_F(Cgroups, NoneIsNoLimit) {
  EXPECT_EQ(limit(), kNoLimit);
  say("memberships", "nonsense\n::\n");
  EXPECT_EQ(limit(), kNoLimit);
}

TEST(MemoryLimits, OfThisMachine) {
  EXPECT_GT(usable_memory(), 64 * kMiB);
  EXPECT_LT(usable_memory(), kNoLimit);
}

bool set_limit(decltype(RLIMIT_AS) resource, std::size_t bytes) {
  const rlimit limit{bytes, bytes};
  return setrlimit(resource, &limit) == 0;
}

bool use(SharedArena& arena, std::size_t bytes) {
  auto memory = arena.allocate(bytes);
  if (!memory.ok()) return false;
  std::fill_n(*memory, bytes, std::byte{1});
  return true;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which take terabytes of address space
TEST(MemoryLimits, AnArenaMakesDoWithLittleAddressSpace) {
  EXPECT_EQ(test::in_fork([] {
              if (!set_limit(RLIMIT_AS, 1024 * kMiB)) return 1;
              auto arena = SharedArena::create();
              if (!arena.ok()) return 2;
              SharedArena& it = **arena;
              if (it.first_bytes() > 8 * kMiB) return 3;
              // More than it began with, piece by piece and at once.
              for (int i = 0; i < 30; ++i) {
                if (!use(it, kMiB)) return 4;
              }
              return use(it, 100 * kMiB) && it.segments() > 2 ? 0 : 5;
            }),
            0);
}

TEST(MemoryLimits, TooLittleAddressSpaceIsNamed) {
  EXPECT_EQ(test::in_fork([] {
              if (!set_limit(RLIMIT_AS, kMiB)) return 1;
              const auto none = SharedArena::create();
              return !none.ok() && none.status().message().find("ulimit -v") != std::string::npos ? 0 : 2;
            }),
            0);
}
#endif

TEST(MemoryLimits, FilesOfLimitedSize) {
  EXPECT_EQ(test::in_fork([] {
              if (!set_limit(RLIMIT_FSIZE, 8 * kMiB)) return 1;
              auto arena = SharedArena::create();
              if (!arena.ok() || !use(**arena, 4 * kMiB)) return 2;
              const auto more = (*arena)->allocate(16 * kMiB);  // not a signal
              return !more.ok() && more.status().message().find("ulimit -f") != std::string::npos ? 0 : 3;
            }),
            0);
}

}  // namespace
}  // namespace lockstep::comm
