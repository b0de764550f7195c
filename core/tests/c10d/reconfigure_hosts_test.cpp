// Worlds that are formed anew over several machines (network namespaces).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "c10d/ranks.h"
#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/objects.h"
#include "support/machines.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

using std::chrono::seconds;

float added_up() {
  const torch::Tensor tensor = torch::full({30'000}, get_rank() + 1.0F);
  all_reduce(tensor);
  return tensor[29'999].item<float>();
}

void add_up_until_a_loss() {
  try {
    while (true) added_up();
  } catch (const std::exception& error) {
    const ErrorCode code = error_code(error);
    EXPECT_TRUE(code == ErrorCode::kPeerFailed || code == ErrorCode::kAborted) << error.what();
  }
}

void say(const char* what) {
  std::puts(what);
  std::fflush(stdout);
}

void wait_until_said(test::JobOnMachines& job, const std::string& what, int first) {
  for (int rank = first; rank < job.world(); ++rank) {
    EXPECT_TRUE(test::wait_for([&] { return job.process(rank).out_so_far().find(what) != std::string::npos; }))
        << "rank " << rank;
  }
}

// Rank 0, which serves the store, and all else of its machine; then one of the others.
TEST(HostsReconfigureFault, AMachineAndLaterARankDie) {
  test::run_on_machines(
      {{2, 2, 1}},
      [](int rank) {
        const ProcessGroupGuard world("", {.timeout = seconds(60), .enable_reconfigure = true});
        EXPECT_EQ(added_up(), 15.0F);
        say("ready");
        add_up_until_a_loss();
        reconfigure();
        EXPECT_EQ(get_rank(), rank - 2);
        EXPECT_EQ(get_world_size(), 3);
        EXPECT_EQ(get_local_rank(), rank == 3 ? 1 : 0);
        EXPECT_EQ(added_up(), 6.0F);
        say("again");
        add_up_until_a_loss();
        reconfigure();
        EXPECT_EQ(get_world_size(), 2);
        EXPECT_EQ(added_up(), 3.0F);
      },
      [](test::JobOnMachines& job) {
        wait_until_said(job, "ready", 0);
        job.kill_machine(0);
        wait_until_said(job, "again", 2);
        job.kill(3);
      });
}

// With handles: fewer, one each, and all again, in another order.
TEST(HostsReconfigureMulti, WorldsShrinkAndGrowBetweenMachines) {
  test::run_on_machines({{1, 2}}, [](int rank) {
    const ProcessGroupGuard world("", {.timeout = seconds(60)});
    const std::vector<std::string> all = all_gather_object(get_reconfigure_handle());
    if (rank != 1) {
      if (rank == 2) {  // waits for rank 0, which lives and calls reconfigure() first
        test::expect_error(ErrorCode::kAborted, {"formed anew by reconfigure on rank 0"},
                           [] { recv(torch::ones({3}), 0); });
      }
      reconfigure({.handles = {all[2], all[0]}, .uuid = 1});
      EXPECT_EQ(get_rank(), rank == 2 ? 0 : 1);
      EXPECT_EQ(added_up(), 3.0F);
    }
    reconfigure({.handles = {all[rank]}, .uuid = 2});
    EXPECT_EQ(added_up(), 1.0F);
    reconfigure({.handles = {all[1], all[2], all[0]}, .uuid = 3});
    EXPECT_EQ(get_rank(), (rank + 2) % 3);
    EXPECT_EQ(added_up(), 6.0F);
    reconfigure();
    EXPECT_EQ(added_up(), 6.0F);
  });
}

// The smaller part of a world whose network is cut does not go on by itself.
TEST(HostsReconfigureFault, ACutNetworkMakesNoTwoWorlds) {
  const test::SharedScratchFolder folder;
  test::run_on_machines(
      {{2, 1}},
      [&](int rank) {
        const ProcessGroupGuard world("", {.timeout = seconds(60), .enable_reconfigure = true});
        EXPECT_EQ(added_up(), 6.0F);
        say("ready");
        EXPECT_TRUE(test::wait_for([&] { return std::filesystem::exists(folder.path("cut")); }));
        EXPECT_ANY_THROW(all_reduce(torch::ones({30'000}), {.timeout = seconds(2)}));
        if (rank == 2) {
          try {
            reconfigure({.timeout = seconds(30)});
            ADD_FAILURE() << "no error";
          } catch (const std::exception& error) {
            EXPECT_NE(std::string(error.what()).find("2 of 3 members cannot be reached"), std::string::npos)
                << error.what();
          }
          return;
        }
        reconfigure({.timeout = seconds(30)});
        EXPECT_EQ(get_world_size(), 2);
        EXPECT_EQ(added_up(), 3.0F);
      },
      [&](test::JobOnMachines& job) {
        wait_until_said(job, "ready", 0);
        job.machines().unplug(1);
        std::ofstream(folder.path("cut"));
      });
}

}  // namespace
}  // namespace lockstep
