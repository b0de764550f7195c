// Training on devices: DistributedDataParallel and checkpoints, against the same training on the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/conv_net.h"
#include "device/ddp_training.h"
#include "device/device_ranks.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/finite_check.h"
#include "lockstep/nn/gradient_accumulation.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "nn/error_texts.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class DeviceDdpMulti : public testing::TestWithParam<int> {};

TEST_P(DeviceDdpMulti, GivesTheWeightsOfTheProcessor) {
  run_on_devices(GetParam(), [](int rank, torch::Device device) {
    for (const auto& [name, variant] : variants()) {
      const State expected = train(torch::kCPU, rank, variant);
      expect_same(train(device, rank, variant), expected, name);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Worlds, DeviceDdpMulti, testing::Values(1, 2, 3));

// A value whose kind Lockstep does not know.
struct Settings {
  double scale = 1;
};

struct ScaledImpl : torch::nn::Module {
  ScaledImpl() { weight = register_parameter("weight", torch::ones({3})); }
  torch::Tensor forward(const std::pair<torch::Tensor, Settings>& input) {
    return input.first * weight * input.second.scale;
  }
  torch::Tensor weight;
};
TORCH_MODULE(Scaled);

// Or refused: `->` is the module's own call, which moves nothing.
TEST(DeviceDdpInputsMulti, AreMovedToTheModule) {
  run_on_devices(2, [](int /*rank*/, torch::Device device) {
    Scaled net;
    net->to(device);
    DistributedDataParallel<Scaled> ddp(net, {.device_ids = {device}});
    const std::pair<torch::Tensor, Settings> input{torch::ones({2, 3}), {0.5}};
    const torch::Tensor output = ddp.forward(input);
    expect_on_device(output, device, torch::full({2, 3}, 0.5F), "output");
    EXPECT_TRUE(input.first.is_cpu());
    output.sum().backward();
    expect_on_device(ddp.parameters()[0].grad(), device, torch::ones({3}), "gradient");
    EXPECT_NE(error_of([&] { ddp->forward(input); }), "no error");
  });
}

struct PassesOnImpl : torch::nn::Module {
  PassesOnImpl() { weight = register_parameter("weight", torch::ones({3})); }
  const torch::Tensor& forward(const torch::Tensor& input) { return input; }
  torch::Tensor weight;
};
TORCH_MODULE(PassesOn);

TEST(DeviceDdpInputsMulti, OutliveTheCallIfTheModuleReturnsThem) {
  run_on_devices(2, [](int /*rank*/, torch::Device device) {
    PassesOn net;
    net->to(device);
    DistributedDataParallel<PassesOn> ddp(net, {.device_ids = {device}});
    const torch::NoGradGuard no_grad;
    const auto& output = ddp.forward(torch::full({2, 3}, 0.5F));
    expect_on_device(output, device, torch::full({2, 3}, 0.5F), "output");
  });
}

// Output, gradients and running statistics of a layer after two steps. Ranks have batches of different sizes.
State normalise(torch::Device device, int rank) {
  SyncBatchNorm norm(6);
  norm->to(device);
  State state;
  for (int step = 0; step < 2; ++step) {
    auto generator = at::detail::createCPUGenerator(10 * step + rank);
    torch::Tensor x = torch::randn({2 + rank, 6, 3, 5}, generator).add_(rank).to(device).requires_grad_();
    const torch::Tensor y = norm->forward(x);
    y.backward(torch::randn(x.sizes(), generator).to(device));
    for (const torch::Tensor& tensor : {y, x.grad(), norm->weight.grad(), norm->running_mean, norm->running_var})
      state.push_back(tensor.detach().cpu().clone());
  }
  return state;
}

// On the CPU loops compute what operators do on devices.
TEST(DeviceSyncBatchNormMulti, GivesTheValuesOfTheProcessor) {
  run_on_devices(3, [](int rank, torch::Device device) {
    expect_near(normalise(device, rank), normalise(torch::kCPU, rank), 1e-5, 1e-5, "tensor");
  });
}

// A group without a backend for the CPU. A rank that has left its module there must not leave the others waiting.
TEST(DeviceAloneMulti, RanksAgreeOnTheDevice) {
  run_on_devices(
      2,
      [](int rank, torch::Device device) {
        ConvNet net;
        if (rank == 0) net->to(device);
        const std::string text = error_of([&] { DistributedDataParallel<ConvNet> ddp(net); });
        expect_in(text, {"device type cpu"});
        if (rank == 0) expect_in(text, {"rank(s) 1 cannot take part"});
        net->to(device);
        const torch::Tensor ignored = net->named_parameters()["conv.weight"];
        ignored.set_data(ignored.cpu());
        EXPECT_EQ(error_of([&] { DistributedDataParallel<ConvNet>(net, {.ignored_parameters = {"conv.weight"}}); }),
                  "no error");
        ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(net->out->parameters(), torch::optim::SGDOptions(0.1));
        EXPECT_TRUE(FiniteCheck(*net).check(torch::full({1}, 1.0 + rank, device)));
        EXPECT_EQ(sample_mean_factor(1 + 2 * rank), 0.5) << "4 samples of 2 ranks";
      },
      test_device_name() + ":lockstep");
}

// State of other ranks comes to the device of the rank that collects it, not to the one where it was written.
TEST(DeviceShardedOptimizerMulti, CollectsTheStateOnItsOwnDevice) {
  run_on_devices(2, [](int rank, torch::Device device) {
    ConvNet net;
    net->to(device);
    DistributedDataParallel<ConvNet> ddp(net, {.device_ids = {device}});
    ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(ddp.parameters(), torch::optim::AdamOptions(0.01));
    ddp->is_training();
    loss_on(net, device).backward();
    optimizer.step();
    optimizer.consolidate_state_dict(0);
    if (rank != 0) return;
    const auto& state = optimizer.consolidated().state();
    EXPECT_EQ(state.size(), ddp.parameters().size());
    for (const auto& [parameter, values] : state) {
      EXPECT_EQ(dynamic_cast<const torch::optim::AdamParamState&>(*values).exp_avg().device(), device);
    }
  });
}

class DeviceCheckpoint : public testing::Test {
 protected:
  struct Run {
    explicit Run(torch::Device where) : device(where) {
      net->to(device);
      optimizer = std::make_unique<torch::optim::Adam>(net->parameters(), torch::optim::AdamOptions(0.01));
    }
    void step() {
      optimizer->zero_grad();
      loss_on(net, device).backward();
      optimizer->step();
    }
    void save(const std::filesystem::path& path) {
      checkpoint::Checkpoint state;
      state.add_model(*net);
      state.add_optimizer(*optimizer);
      state.add_generator();
      state.save(path);
    }
    void restore(const std::filesystem::path& path) {
      const auto state = checkpoint::Checkpoint::load(path);
      state.restore_model(*net);
      state.restore_optimizer(*optimizer);
      state.restore_generator();
    }
    torch::Device device;
    ConvNet net;
    std::unique_ptr<torch::optim::Adam> optimizer;
  };

  DeviceCheckpoint() { use_test_device(); }
  ScratchFolder folder_;
};

TEST_F(DeviceCheckpoint, HoldsTheGeneratorsOfDevices) {
  const torch::Device device = test_device(1);
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.set_current_seed(9);
  const torch::Tensor saved = checkpoint::generator_state(device);
  checkpoint::Checkpoint state;
  state.add_generators(std::vector{saved, checkpoint::generator_state(test_device(2))}, device.type());
  EXPECT_THROW(state.restore_generator(), checkpoint::CheckpointError) << "it has none of the CPU";
  generator.set_current_seed(10);
  state.restore_generator(device);
  EXPECT_TRUE(torch::equal(checkpoint::generator_state(device), saved));
}

TEST_F(DeviceCheckpoint, ContinuesOnAnyDeviceWithTheSameBits) {
  const std::vector<torch::Device> devices{test_device(0), test_device(2), torch::kCPU};
  for (const torch::Device from : devices) {
    const auto path = folder_.path() / "state";
    torch::manual_seed(5);
    Run first(from);
    first.step();
    first.step();
    first.save(path);
    first.step();
    const State expected = state_of(first.net);
    for (const torch::Device to : devices) {
      Run second(to);
      second.step();  // state of its own, to be replaced
      second.restore(path);
      second.step();
      expect_same(state_of(second.net), expected, c10::str("from ", from, " to ", to));
      for (const auto& parameter : second.net->parameters()) EXPECT_EQ(parameter.device(), to);
      Run fresh(to);
      fresh.restore(path);
      fresh.step();
      expect_same(state_of(fresh.net), expected, c10::str("from ", from, " to a fresh run on ", to));
    }
  }
}

}  // namespace
}  // namespace lockstep::test
