// ZeroRedundancyOptimizer for parameters on devices.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/conv_net.h"
#include "device/device_ranks.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"

namespace lockstep::test {
namespace {

using ShardedAdam = ZeroRedundancyOptimizer<torch::optim::Adam>;

const torch::optim::AdamParamState& adam_state(const torch::optim::Optimizer& optimizer,
                                               const torch::Tensor& parameter) {
  return dynamic_cast<const torch::optim::AdamParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

void take_steps(ConvNet& net, torch::Device device, torch::optim::Optimizer& optimizer) {
  DistributedDataParallel<ConvNet> ddp(net);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    ddp->is_training();  // operator-> begins the pass
    loss_on(net, device).backward();
    optimizer.step();
  }
}

State train_sharded(torch::Device device, int rank, const ZeroRedundancyOptions& options) {
  torch::manual_seed(7 + rank);
  ConvNet net;
  net->to(device);
  ShardedAdam optimizer(net->parameters(), torch::optim::AdamOptions(0.01), options);
  take_steps(net, device, optimizer);
  for (const torch::Tensor& parameter : net->parameters()) EXPECT_EQ(parameter.device(), device);
  return state_of(net);
}

TEST(DeviceShardedStepsMulti, GiveTheWeightsOfTheProcessor) {
  run_on_devices(2, [](int rank, torch::Device device) {
    const State expected = train_sharded(torch::kCPU, rank, {});
    expect_same(train_sharded(device, rank, {}), expected, "sharded");
    expect_same(train_sharded(device, rank, {.bucket_cap_mb = 0.001}), expected, "in many parts");
    // There are no fused kernels for the device, so it takes the steps of the optimizer.
    expect_same(train_sharded(device, rank, {.fused = true}), expected, "fused");
  });
}

// Through a checkpoint: the state of all ranks becomes that of a plain optimizer on the CPU, and is divided again.
TEST(DeviceShardedStepsMulti, ContinueFromAPlainOptimizerOfTheProcessor) {
  run_on_devices(2, [](int rank, torch::Device device) {
    ConvNet net;
    net->to(device);
    ShardedAdam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
    take_steps(net, device, optimizer);
    ConvNet host;
    torch::optim::Adam plain(host->parameters(), torch::optim::AdamOptions(1));
    for (int root = 0; root < 2; ++root) {  // each rank gets all
      optimizer.consolidate_state_dict(root);
      if (root != rank) continue;
      checkpoint::Checkpoint state;
      state.add_optimizer(optimizer.consolidated());
      state.restore_optimizer(plain);
    }
    ShardedAdam next(net->parameters(), torch::optim::AdamOptions(1));
    next.load_consolidated(plain);
    const std::vector<torch::Tensor> parameters = net->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& of_host = adam_state(plain, host->parameters()[i]);
      EXPECT_TRUE(of_host.exp_avg().is_cpu());
      if (next.owner_of(parameters[i]) != rank) continue;
      const auto& own = adam_state(next.local_optimizer(), parameters[i]);
      const auto& before = adam_state(optimizer.local_optimizer(), parameters[i]);
      expect_on_device(own.exp_avg(), device, before.exp_avg(), c10::str("first moment ", i));
      expect_on_device(own.exp_avg_sq(), device, of_host.exp_avg_sq(), c10::str("second moment ", i));
      EXPECT_EQ(own.step(), 4);
    }
  });
}

}  // namespace
}  // namespace lockstep::test
