#include "shm/memory_limits.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "lockstep/shm/shared_arena.h"
#include "support/forked.h"
#include "support/scratch_folder.h"
#include "support/sizes.h"

namespace lockstep::comm {
namespace {

using test::kMiB;

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

bool write_line(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::endl;
  return file.good();
}

// A control group of the system, with a memory limit, below that of this process.
class SystemsCgroup {
 public:
  explicit SystemsCgroup(std::size_t limit) {
    std::ifstream memberships("/proc/self/cgroup");
    for (std::string line; !made_ && std::getline(memberships, line);) {
      const std::string group = line.substr(line.find(':', line.find(':') + 1) + 1);
      if (line.find(":memory:") != std::string::npos)
        make("/sys/fs/cgroup/memory" + group, "memory.limit_in_bytes", limit);
      if (line.starts_with("0::")) make("/sys/fs/cgroup" + group, "memory.max", limit);
    }
  }
  ~SystemsCgroup() {
    if (made_) rmdir(folder_.c_str());
  }
  SystemsCgroup(const SystemsCgroup&) = delete;
  SystemsCgroup& operator=(const SystemsCgroup&) = delete;

  bool made() const { return made_; }
  bool join() const { return write_line(folder_ + "/cgroup.procs", "0"); }

 private:
  void make(const std::string& parent, const std::string& file, std::size_t limit) {
    folder_ = fmt::format("{}/lockstep-test-{}", parent, getpid());
    if (mkdir(folder_.c_str(), 0755) != 0) return;
    made_ =
        access((folder_ + "/" + file).c_str(), W_OK) == 0 && write_line(folder_ + "/" + file, std::to_string(limit));
    if (!made_) rmdir(folder_.c_str());
  }

  std::string folder_;
  bool made_ = false;
};

// More than a group may have is an error, before the kernel kills the process for it.
TEST(MemoryLimits, OfTheSystemsControlGroupBoundAnArena) {
#ifdef __SANITIZE_THREAD__  // which takes several bytes for each byte that is written
  constexpr std::size_t kLimit = 512 * kMiB;
#else
  constexpr std::size_t kLimit = 64 * kMiB;
#endif
  const SystemsCgroup group(kLimit);
  if (!group.made()) GTEST_SKIP() << "no control group with a memory limit can be made here";
  EXPECT_EQ(test::in_fork([&] {
              if (!group.join()) return 1;
              if (usable_memory() != kLimit) return 2;
              auto arena = SharedArena::create();
              if (!arena.ok()) return 3;
              auto memory = (*arena)->allocate(32 * kMiB);
              if (!memory.ok()) return 4;
              std::fill_n(*memory, 32 * kMiB, std::byte{1});
              return (*arena)->allocate(kLimit - 24 * kMiB).ok() ? 5 : 0;
            }),
            0);
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
