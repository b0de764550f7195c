// Communication hooks whose buckets are on a device. What they compute is tested on the CPU (core/tests/nn).
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>

#include "device/conv_net.h"
#include "device/device_ranks.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/power_sgd.h"

namespace lockstep::test {
namespace {

using MakeHook = std::function<std::shared_ptr<CommHook>()>;
using HookState = std::map<std::string, torch::Tensor>;

struct Trained {
  State state;
  HookState hook;
};

// Four steps in several buckets, with a hook that begins with `saved`.
Trained train_with_hook(torch::Device device, int rank, const MakeHook& make, const HookState& saved = {}) {
  torch::manual_seed(7 + rank);
  ConvNet net;
  net->to(device);
  DistributedDataParallel<ConvNet> ddp(net, {.bucket_cap_mb = 0.004});
  const std::shared_ptr<CommHook> hook = make();
  if (!saved.empty()) hook->load(saved);
  ddp.register_comm_hook(hook);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    ddp->is_training();  // operator-> begins the pass
    loss_on(net, device).backward();
    optimizer.step();
  }
  for (const torch::Tensor& parameter : net->parameters()) EXPECT_EQ(parameter.grad().device(), device);
  return {state_of(net), hook->tensors()};
}

TEST(DeviceCommHooksMulti, GiveTheWeightsOfTheProcessor) {
  run_on_devices(2, [](int rank, torch::Device device) {
    const std::map<std::string, MakeHook> hooks{
        {"half", [] { return make_compress_hook(torch::kHalf); }},
        {"bfloat16 with feedback", [] { return make_compress_hook(torch::kBFloat16, {.error_feedback = true}); }},
        {"wrapped", [] { return make_compress_wrapper(torch::kBFloat16, make_compress_hook(torch::kHalf)); }},
    };
    for (const auto& [name, make] : hooks) {
      const Trained expected = train_with_hook(torch::kCPU, rank, make);
      expect_same(train_with_hook(device, rank, make).state, expected.state, name);
    }
  });
}

// Products of matrices may round in another way where memory lies in another way, as it does on the device.
TEST(DeviceCommHooksMulti, PowerSgdGivesTheWeightsOfTheProcessor) {
  run_on_devices(2, [](int rank, torch::Device device) {
    for (const std::int64_t columns : {1, 4}) {  // with Gram-Schmidt, and with a QR decomposition
      const PowerSgdOptions options{.matrix_approximation_rank = columns, .start_power_sgd_iter = 1};
      const MakeHook make = [&] { return make_power_sgd_hook(options); };
      const Trained expected = train_with_hook(torch::kCPU, rank, make);
      expect_near(train_with_hook(device, rank, make).state, expected.state, 1e-3, 1e-5,
                  c10::str("PowerSGD ", columns));
    }
  });
}

struct StreamOfRun final : CommHook {
  explicit StreamOfRun(std::vector<c10::Stream>& seen) : seen(seen) {}
  std::function<void()> run(GradBucket& bucket) override {
    seen.push_back(c10::impl::VirtualGuardImpl(bucket.buffer().device().type()).getStream(bucket.buffer().device()));
    return nullptr;
  }
  std::vector<c10::Stream>& seen;
};

// A pass that is moved to another stream, as for a CUDA graph, computes its gradients there.
TEST(DeviceCommHooksMulti, FollowTheStreamOfTheForwardPass) {
  run_on_devices(
      2,
      [](int /*rank*/, torch::Device device) {
        ConvNet net;
        net->to(device);
        DistributedDataParallel<ConvNet> ddp(net);
        std::vector<c10::Stream> seen;
        ddp.register_comm_hook(std::make_shared<StreamOfRun>(seen));
        const c10::impl::VirtualGuardImpl streams(device.type());
        const c10::Stream beside = streams.getStreamFromGlobalPool(device);
        const c10::Stream usual = streams.getStream(device);
        torch::Tensor loss;  // holds the graph of a pass until the next one has begun
        for (const c10::Stream stream : {usual, usual, beside, beside, usual, usual}) {
          const c10::StreamGuard guard(stream);
          seen.clear();
          ddp->is_training();  // operator-> begins the pass
          loss = loss_on(net, device);
          loss.backward();
          ASSERT_FALSE(seen.empty());
          for (const c10::Stream found : seen) EXPECT_EQ(found, stream);
        }
      },
      "lockstep");
}

// In a world of one rank too, where the wrapper has no hooks.
TEST(DeviceWrapperAloneMulti, FollowsTheStreamOfTheForwardPass) {
  run_on_devices(1, [](int /*rank*/, torch::Device device) {
    ConvNet net;
    net->to(device);
    DistributedDataParallel<ConvNet> ddp(net);
    const c10::impl::VirtualGuardImpl streams(device.type());
    const c10::Stream usual = streams.getStream(device);
    torch::Tensor loss;  // holds the graph of a pass until the next one has begun
    for (const c10::Stream stream : {usual, usual, streams.getStreamFromGlobalPool(device), usual}) {
      const c10::StreamGuard guard(stream);
      ddp->is_training();  // operator-> begins the pass
      loss = loss_on(net, device);
      for (const torch::Tensor& parameter : net->parameters())
        EXPECT_EQ(torch::autograd::impl::grad_accumulator(parameter)->input_metadata(0).stream(), stream);
      loss.backward();
    }
  });
}

// As when a checkpoint is read to the device, or a run goes on without one.
TEST(DeviceCommHooksMulti, TakeTheirStateFromAnyDevice) {
  run_on_devices(2, [](int rank, torch::Device device) {
    const std::map<std::string, MakeHook> hooks{
        {"half", [] { return make_compress_hook(torch::kHalf, {.error_feedback = true}); }},
        {"PowerSGD", [] { return make_power_sgd_hook({.start_power_sgd_iter = 0}); }},
    };
    for (const auto& [name, make] : hooks) {
      const HookState saved = train_with_hook(device, rank, make).hook;
      HookState on_host;
      HookState elsewhere;
      for (const auto& [key, tensor] : saved) {
        on_host[key] = tensor.cpu().clone();
        elsewhere[key] = tensor.to(test_device(3), /*non_blocking=*/false, /*copy=*/true);
      }
      const Trained expected = train_with_hook(device, rank, make, on_host);
      expect_same(train_with_hook(device, rank, make, elsewhere).state, expected.state, name);
      expect_near(train_with_hook(torch::kCPU, rank, make, elsewhere).state, expected.state, 1e-3, 1e-5,
                  name + " on the CPU");
    }
  });
}

}  // namespace
}  // namespace lockstep::test
