// Activation checkpointing on devices, whose backward passes run in threads of LibTorch's: the same weights as on the
// CPU without checkpointing, and one pass in each step.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/device_ranks.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "nn/checkpointed.h"

namespace lockstep::test {
namespace {

using torch::Tensor;

// Segments inside a segment.
struct NestedImpl : torch::nn::Module {
  NestedImpl() {
    one = register_module("one", torch::nn::Linear(20, 100));
    two = register_module("two", torch::nn::Linear(100, 100));
    three = register_module("three", torch::nn::Linear(100, 3));
  }
  Tensor forward(const Tensor& x, bool checkpointed) {
    const Segment front = [this](const Tensor& y) { return torch::tanh(one(y)); };
    const Segment middle = [this](const Tensor& y) { return torch::tanh(two(y)); };
    const Segment back = [this](const Tensor& y) { return three(y); };
    if (!checkpointed) return back(middle(front(x)));
    const Segment begin = [=](const Tensor& y) { return checkpoint_reentrant(checkpoint_reentrant(y, front), middle); };
    return checkpoint_reentrant(checkpoint_reentrant(x, begin), back);
  }
  torch::nn::Linear one{nullptr}, two{nullptr}, three{nullptr};
};
TORCH_MODULE(Nested);

std::vector<Tensor> train(torch::Device device, int rank, bool checkpointed) {
  torch::manual_seed(1);
  Nested net;
  net->to(device);
  DistributedDataParallel<Nested> ddp(net, {.bucket_cap_mb = 0.01, .static_graph = true});
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    auto generator = at::detail::createCPUGenerator(10 * step + rank);
    ddp->forward(torch::randn({8, 20}, generator).to(device), checkpointed).square().mean().backward();
    optimizer.step();
  }
  EXPECT_EQ(ddp.reducer().sent().total, get_world_size() > 1 ? 4 * ddp.reducer().bucket_bytes() : 0);
  return ddp.parameters();
}

class DeviceCheckpointingMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DeviceCheckpointingMulti, testing::Values(1, 2));

TEST_P(DeviceCheckpointingMulti, GivesTheWeightsOfTheProcessor) {
  run_on_devices(GetParam(), [](int rank, torch::Device device) {
    const std::vector<Tensor> expected = train(torch::kCPU, rank, /*checkpointed=*/false);
    const std::vector<Tensor> actual = train(device, rank, /*checkpointed=*/true);
    for (std::size_t i = 0; i < expected.size(); ++i) expect_on_device(actual[i], device, expected[i], "parameter");
  });
}

}  // namespace
}  // namespace lockstep::test
