// Process groups over several machines (network namespaces): what LibTorch sees of them.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "support/machines.h"

namespace lockstep {
namespace {

TEST(HostsC10dMulti, GroupsAndMessagesSpanMachines) {
  test::run_on_machines({{2, 1}}, [](int rank) {
    const ProcessGroupGuard world;
    torch::Tensor sum = torch::full({1000, 3}, rank + 1, torch::kBFloat16).t();
    all_reduce(sum);
    EXPECT_TRUE(torch::equal(sum, torch::full({3, 1000}, 6, torch::kBFloat16)));

    const ProcessGroup far = new_group({0, 2});  // one of each machine
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

// The program says no more than rank, world size and MASTER_ADDR.
TEST(HostsC10dMulti, LocalRanksAreFoundOut) {
  test::run_on_machines({{1, 2}}, [](int rank) {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}) unsetenv(name);
    const ProcessGroupGuard world("", {.rank = rank, .world_size = 3});
    EXPECT_EQ(get_local_rank(), rank == 2 ? 1 : 0);
  });
}

}  // namespace
}  // namespace lockstep
