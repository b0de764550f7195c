// The shared memory of a rank that trains: its buckets, and little else.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

std::size_t resident(const comm::SharedArena& arena) {
  struct stat info {};
  EXPECT_EQ(fstat(arena.fd(), &info), 0);
  return static_cast<std::size_t>(info.st_blocks) * 512;
}

// The parameters are sent in one block. The buckets take a little more, so that the last does not fit where it was.
TEST(SharedMemoryMulti, HoldsBucketsAndLittleElse) {
  run_processes(2, [](int) {
    const ProcessGroupGuard group;
    torch::nn::Sequential net;
    for (int i = 0; i < 4; ++i) net->push_back(torch::nn::Linear(512, 512));
    DistributedDataParallel<torch::nn::Sequential> ddp(net, {.bucket_cap_mb = 0.5});
    ddp->forward(torch::ones({2, 512})).sum().backward();
    const auto arena = process_arena();
    EXPECT_GT(arena->allocated(), std::size_t{4} << 20) << "the buckets";
    EXPECT_LT(resident(*arena), arena->allocated() + (std::size_t{256} << 10));
    barrier();
  });
}

}  // namespace
}  // namespace lockstep::test
