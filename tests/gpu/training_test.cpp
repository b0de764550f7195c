// What only CUDA has: its generator, bfloat16 with channels last, steps whose gradients NCCL adds.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "device/device_ranks.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/mixed_precision.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

// Dropout draws from the device's generator. A run that goes on from a file draws what it would have drawn.
TEST(DeviceGenerator, ContinuesFromAFile) {
  use_test_device();
  const torch::Device device = test_device(0);
  const ScratchFolder folder;
  torch::manual_seed(5);
  const torch::Tensor ones = torch::ones({1000}, device);
  torch::dropout(ones, 0.5, true);
  checkpoint::Checkpoint state;
  state.add_generators(std::vector{checkpoint::generator_state(device)}, device.type());
  state.save(folder.path() / "state");
  const torch::Tensor expected = torch::dropout(ones, 0.5, true).cpu();
  torch::dropout(ones, 0.5, true);
  checkpoint::Checkpoint::load(folder.path() / "state").restore_generator(device);
  EXPECT_TRUE(torch::equal(torch::dropout(ones, 0.5, true).cpu(), expected));
}

struct Precision {
  bool autocast;
  bool channels_last;
};

// Losses of some steps, with or without the wrapper.
std::vector<double> losses(torch::Device device, bool wrapped, const Precision& precision) {
  torch::manual_seed(1);
  auto net = models::resnet18({.num_classes = 10, .small_images = true});
  net->to(device);
  torch::Tensor x = torch::randn({16, 3, 32, 32}).to(device);
  const torch::Tensor y = torch::randint(10, {16}, torch::kLong).to(device);
  if (precision.channels_last) {
    for (torch::Tensor& parameter : net->parameters())
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
    x = x.contiguous(torch::MemoryFormat::ChannelsLast);
  }
  std::optional<DistributedDataParallel<models::ResNet>> ddp;
  if (wrapped) ddp.emplace(net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::vector<double> found;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    torch::Tensor scores;
    {
      std::optional<Autocast> autocast;
      if (precision.autocast) autocast.emplace(device.type());
      scores = wrapped ? ddp->forward(x) : net->forward(x);
    }
    const torch::Tensor loss = torch::cross_entropy_loss(scores.to(torch::kFloat), y);
    loss.backward();
    fused_step(optimizer);
    found.push_back(loss.item<double>());
  }
  return found;
}

// All ranks have the same batch, so the mean gradient is that of the bare model.
class WrappedTraining : public testing::TestWithParam<int> {};

TEST_P(WrappedTraining, HasTheLossesOfTheBareModel) {
  run_on_devices(GetParam(), [](int /*rank*/, torch::Device device) {
    for (const Precision precision : {Precision{false, false}, Precision{true, false}, Precision{true, true}}) {
      const std::vector<double> expected = losses(device, false, precision);
      const std::vector<double> actual = losses(device, true, precision);
      EXPECT_LT(expected.back(), expected.front()) << "it learns";
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(actual[i], expected[i], 0.05 * expected[0]) << precision.autocast << precision.channels_last << i;
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Worlds, WrappedTraining, testing::Values(1, 2));

}  // namespace
}  // namespace lockstep::test
