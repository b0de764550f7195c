// Process groups over several machines (network namespaces), through LibTorch's interface.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "support/machines.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

TEST(HostsC10dMulti, GroupsAndMessagesSpanMachines) {
  test::run_on_machines({{2, 1}}, [](int rank) {
    const ProcessGroupGuard world;
    torch::Tensor sum = torch::full({1000, 3}, rank + 1, torch::kBFloat16).t();
    all_reduce(sum);
    EXPECT_TRUE(torch::equal(sum, torch::full({3, 1000}, 6, torch::kBFloat16)));

    const ProcessGroup far = new_group({0, 2});  // one rank of each machine
    const ProcessGroup near = new_group({0, 1});
    torch::Tensor ones = torch::ones({5000});
    if (rank != 1) all_reduce(ones, {.group = far});
    if (rank != 2) all_reduce(ones, {.group = near});
    EXPECT_EQ(ones[0].item<float>(), rank == 2 ? 2.0F : 3.0F);
    const ProcessGroup odd = split_group(rank == 1 ? 0 : 1, -rank);
    torch::Tensor numbers = torch::full({40'000}, rank, torch::kInt64);
    all_reduce(numbers, {.group = odd});
    EXPECT_EQ(numbers[7].item<std::int64_t>(), rank == 1 ? 1 : 2);

    torch::Tensor message = torch::full({100'000}, rank, torch::kFloat64);
    if (rank > 0) send(message, 0, {.tag = 3});
    if (rank == 0) {
      std::vector<int> sources;
      for (int i = 0; i < 2; ++i) {
        sources.push_back(recv(message, kAnySource, {.tag = 3}));
        EXPECT_EQ(message[99'999].item<double>(), sources.back());
      }
      std::sort(sources.begin(), sources.end());
      EXPECT_EQ(sources, (std::vector<int>{1, 2}));
    }
    barrier();
  });
}

// The program gives only rank, world size and MASTER_ADDR.
TEST(HostsC10dMulti, LocalRanksAreFoundOut) {
  test::run_on_machines({{1, 2}}, [](int rank) {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}) unsetenv(name);
    const ProcessGroupGuard world("", {.rank = rank, .world_size = 3});
    EXPECT_EQ(get_local_rank(), rank == 2 ? 1 : 0);
  });
}

// The machine that serves the store, and half of every group, disappears at once.
TEST(HostsC10dFault, AMachineIsGone) {
  const test::SharedScratchFolder folder;
  test::run_on_machines(
      {{1, 1}},
      [&](int rank) {
        // Programs with LibTorch start at different times on a busy machine, and a short timeout is for joining too.
        const std::ofstream starts(folder.path(std::to_string(rank) + " starts"));
        const std::string other = folder.path(std::to_string(1 - rank) + " starts");
        EXPECT_TRUE(test::wait_for([&] { return std::filesystem::exists(other); }));
        std::chrono::steady_clock::time_point error_at;
        {
          const ProcessGroupGuard world("", {.timeout = std::chrono::seconds(5)});
          std::vector<ProcessGroup> groups;
          for (int i = 0; i < 4; ++i) groups.push_back(new_group({0, 1}));
          torch::Tensor tensor = torch::ones({10});
          for (const ProcessGroup& group : groups) all_reduce(tensor, {.group = group});
          const std::ofstream ready(folder.path(std::to_string(rank)));
          while (!std::filesystem::exists(folder.path("gone"))) std::this_thread::yield();
          std::vector<Work> behind;
          for (const ProcessGroup& group : groups) behind.push_back(all_reduce_async(tensor, {.group = group}));
          EXPECT_ANY_THROW(all_reduce(tensor));
          error_at = std::chrono::steady_clock::now();
        }
        // Far above the promised second, far below a minute.
        EXPECT_LT(std::chrono::steady_clock::now() - error_at, std::chrono::seconds(15)) << "rank " << rank;
      },
      [&](test::JobOnMachines& job) {
        const auto met = [&](int rank) {
          return test::wait_for([&] { return std::filesystem::exists(folder.path(std::to_string(rank))); });
        };
        EXPECT_TRUE(met(0) && met(1));
        job.machines().unplug(0);
        std::ofstream(folder.path("gone"));
      });
}

}  // namespace
}  // namespace lockstep
