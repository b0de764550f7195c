// Training with a limited address space (ulimit -v): buckets are in further segments of the arenas.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <fstream>

#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these need terabytes of it
constexpr std::size_t kMiB = std::size_t{1} << 20;

void limit_address_space(std::size_t left) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{pages * 4096 + left, RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

TEST(AddressSpaceMulti, TrainsWithLittle) {
  run_processes(2, [](int rank) {
    torch::set_num_threads(1);  // each thread has a stack and a heap in the address space
    limit_address_space(1024 * kMiB);
    const ProcessGroupGuard group;
    torch::manual_seed(3);
    DistributedDataParallel<torch::nn::Linear> ddp(torch::nn::Linear(1500, 1500));
    for (int step = 0; step < 4; ++step) {
      ddp.module()->zero_grad();
      // The gradient of each weight is the mean of 1 and 3 times the step.
      ddp->forward(torch::full({1, 1500}, step * (rank == 0 ? 1.0F : 3.0F))).sum().backward();
      EXPECT_TRUE(torch::equal(ddp.module()->weight.grad(), torch::full({1500, 1500}, step * 2.0F)));
    }
    EXPECT_GT(process_arena()->segments(), 1U);
    const torch::Tensor large = torch::ones({3'000'000});
    all_reduce(large);
    EXPECT_TRUE(torch::equal(large, torch::full({3'000'000}, 2.0F)));
  });
}
#endif

}  // namespace
}  // namespace lockstep::test
