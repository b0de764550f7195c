// The parts of the site layer that need no program: requests for devices, leases, placement, processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "launch/process/cores.h"
#include "lockstep/base/fd.h"
#include "site/devices.h"
#include "site/jobs.h"
#include "site/processes.h"
#include "site/topology.h"
#include "support/forked.h"
#include "support/other_user.h"
#include "support/scratch_folder.h"

namespace lockstep::site {
namespace {

using test::ScratchFolder;

TEST(Leases, OneHolderAtATimeAndNothingLeft) {
  const ScratchFolder folder;
  const LeaseFolder leases(folder.path());
  {
    auto lease = leases.try_take("gpu-1/../x");
    ASSERT_TRUE(lease.ok() && lease.value().has_value());
    EXPECT_FALSE(leases.try_take("gpu-1/../x").value().has_value());
    EXPECT_TRUE(leases.try_take("gpu-2").value().has_value());
    EXPECT_NE(leases.holder_of("gpu-1/../x").find("process " + std::to_string(getpid()) + " of "), std::string::npos);
    const Status waited = leases.take("gpu-1/../x", Deadline::after(std::chrono::milliseconds(20))).status();
    EXPECT_EQ(waited.code(), ErrorCode::kTimeout);
  }
  EXPECT_TRUE(leases.try_take("gpu-1/../x").value().has_value());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Leases, AHoldersDeathEndsIt) {
  const ScratchFolder folder;
  const LeaseFolder leases(folder.path());
  // The child ends without destructors, as a killed process does.
  EXPECT_EQ(test::in_fork([&] { return leases.try_take("gpu").value().has_value() ? (_exit(0), 0) : 1; }), 0);
  EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
  EXPECT_TRUE(leases.try_take("gpu").value().has_value());
}

// Who takes our folder's name does not keep us from our leases, and can neither lock nor remove them.
TEST(Leases, OtherUsersCanOnlyLook) {
  const ScratchFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 01777), 0);
  const LeaseFolder leases(folder.path());
  const std::string name = folder.path("lockstep-leases-" + std::to_string(geteuid()));
  test::OtherUser squatter([&] { return std::string(mkdir(name.c_str(), 0777) == 0 ? "made" : "not made"); });
  EXPECT_EQ(squatter.result(), "made");
  const auto choosing = leases.take("choosing", Deadline::after(std::chrono::seconds(10)));
  EXPECT_TRUE(choosing.ok());
  auto held = leases.try_take("gpu");
  ASSERT_TRUE(held.ok() && held.value().has_value()) << held.status().message();
  test::OtherUser other([&] {
    int opened = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
      struct stat info {};
      if (stat(entry.path().c_str(), &info) != 0 || info.st_uid == geteuid()) continue;
      opened += Fd(open(entry.path().c_str(), O_RDWR)).valid() || unlink(entry.path().c_str()) == 0 ||
                rename(entry.path().c_str(), folder.path("mine").c_str()) == 0;
    }
    return std::to_string(opened) + (leases.try_take("gpu").value() ? " and got it" : " and saw it");
  });
  EXPECT_EQ(other.result(), "0 and saw it");
  held.value().reset();
  test::OtherUser later([&] { return std::string(leases.try_take("gpu").value() ? "got it" : "did not get it"); });
  EXPECT_EQ(later.result(), "got it");
}

TEST(Leases, WhatIsNoFileIsRefused) {
  const ScratchFolder folder;
  const LeaseFolder leases(folder.path());
  const std::string own = "lockstep-leases-" + std::to_string(geteuid());
  std::filesystem::create_directory(folder.path(own));
  std::filesystem::create_symlink(folder.path("elsewhere"), folder.path(own + "/lockstep-lease-link"));
  EXPECT_FALSE(leases.try_take("link").ok());
  EXPECT_FALSE(std::filesystem::exists(folder.path("elsewhere")));
  ASSERT_EQ(mkfifo(folder.path(own + "/lockstep-lease-fifo").c_str(), 0600), 0);
  EXPECT_EQ(leases.try_take("fifo").status().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(LeaseFolder("/none").try_take("gpu").status().code(), ErrorCode::kNotFound);
}

TEST(CgroupCores, TheLeastLimitOfAllLevelsCounts) {
  const ScratchFolder root;
  root.write("cgroup2", "0::/a/b\n");
  root.write("v2/a/cpu.max", "150000 100000\n");
  root.write("v2/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(launch::cgroup_cores(root.path("cgroup2"), root.path("v2")), 1.5);
  root.write("v2/cpu.max", "50000 100000\n");
  EXPECT_EQ(launch::cgroup_cores(root.path("cgroup2"), root.path("v2")), 0.5);
  root.write("cgroup1", "5:cpu,cpuacct:/job\n3:memory:/x\n");
  root.write("v1/cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
  root.write("v1/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(launch::cgroup_cores(root.path("cgroup1"), root.path("v1")), 4.0);
  root.write("v1/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(launch::cgroup_cores(root.path("cgroup1"), root.path("v1")), std::nullopt);
  EXPECT_EQ(launch::cgroup_cores("/none", "/none"), std::nullopt);
  EXPECT_GE(launch::usable_cores(), 1);
}

// `nodes` NUMA nodes with `cores` cores of two processors each, numbered as Linux does: second threads last.
Topology machine(int nodes, int cores) {
  Topology topology;
  for (int i = 0; i < nodes * cores; ++i) topology.cores.push_back({i / cores, {i, i + nodes * cores}});
  return topology;
}

using Shares = std::vector<std::vector<int>>;

TEST(Placement, WorkersGetWholeCoresOfOneNode) {
  EXPECT_EQ(place_workers(machine(2, 2), {-1, -1}), (Shares{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(place_workers(machine(1, 4), {-1, -1, -1, -1}), (Shares{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(place_workers(machine(2, 2), {-1}), Shares(1)) << "one worker has all";
  EXPECT_EQ(place_workers(machine(1, 2), {-1, -1, -1}), Shares(3)) << "more workers than cores";
}

TEST(Placement, WorkersAreNearTheirGpu) {
  EXPECT_EQ(place_workers(machine(2, 2), {1, 0}), (Shares{{2, 3, 6, 7}, {0, 1, 4, 5}}));
  // Both GPUs hang on node 1: the second takes what is left.
  EXPECT_EQ(place_workers(machine(2, 2), {1, 1}), (Shares{{2, 3, 6, 7}, {0, 1, 4, 5}}));
  EXPECT_EQ(place_workers(machine(2, 1), {-1, 0}), (Shares{{1, 3}, {0, 2}}));
}

TEST(Placement, NoCoreIsGivenTwiceAndEachWorkerHasOne) {
  for (int nodes = 1; nodes <= 3; ++nodes) {
    for (int cores = 1; cores <= 4; ++cores) {
      for (int workers = 2; workers <= nodes * cores; ++workers) {
        for (int gpu = -1; gpu < nodes; ++gpu) {
          std::set<int> seen;
          for (const auto& share :
               place_workers(machine(nodes, cores), std::vector<int>(static_cast<std::size_t>(workers), gpu))) {
            EXPECT_FALSE(share.empty());
            for (const int processor : share) EXPECT_TRUE(seen.insert(processor).second);
          }
          EXPECT_EQ(seen.size(), static_cast<std::size_t>(2 * nodes * cores));
        }
      }
    }
  }
}

TEST(Placement, HwlocSeesTheCoresOfThisProcess) {
  auto topology = read_topology();
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  std::set<int> processors;
  for (const Core& core : topology->cores) processors.insert(core.processors.begin(), core.processors.end());
  const std::vector<int> allowed = launch::allowed_cores();
  EXPECT_EQ(processors, std::set<int>(allowed.begin(), allowed.end()));
}

TEST(Processes, ThisOneIsSeenAsItIs) {
  const auto self = find_process(getpid());
  ASSERT_TRUE(self.has_value());
  EXPECT_EQ(self->parent, getppid());
  EXPECT_EQ(self->user, geteuid());
  EXPECT_EQ(self->name, "site_tests");
  EXPECT_GT(self->memory_bytes, 100'000U);
  EXPECT_LT(self->age_seconds, 3600);
  EXPECT_FALSE(find_process(1 << 30).has_value());
}

TEST(RunningJobs, NoNameIsNotTheNameOfAJobThatIsStarting) {
  std::vector<RunningJob> jobs(1);
  jobs[0].launcher.pid = 4711;
  EXPECT_EQ(find_job(jobs, "").status().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(find_job(jobs, "4711").ok());
  EXPECT_EQ(find_job(jobs, "a").status().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace lockstep::site
