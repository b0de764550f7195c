// DistributedDataParallel over a backend whose collectives are work of a stream, as NCCL's are. The program runs ahead
// of the device: a step never waits for it, and a missing wait between streams is a wrong result.
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/conv_net.h"
#include "device/ddp_training.h"
#include "device/device_ranks.h"
#include "device/stream_backend.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/nn/finite_check.h"
#include "lockstep/nn/power_sgd.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "support/test_device.h"

namespace lockstep::test {
namespace {

void run_on_streams(int world, const OnDevice& fn) {
  run_on_devices(world, [&](int rank, torch::Device device) {
    use_stream_backend(device);
    fn(rank, device);
    barrier();  // of the CPU: no rank leaves while another one's stream still has collectives
  });
}

std::vector<std::pair<const char*, Variant>> stream_variants() {
  std::vector<std::pair<const char*, Variant>> all = variants();
  std::erase_if(all, [](const auto& one) { return one.second.own_group; });  // which has another backend
  all.push_back(
      {"half", {.options = {.bucket_cap_mb = 0.004}, .hook = [] { return make_compress_hook(torch::kHalf); }}});
  all.push_back({"feedback, copies of gradients", {.options = {.gradient_as_bucket_view = false}, .hook = [] {
                                                     return make_compress_hook(torch::kHalf, {.error_feedback = true});
                                                   }}});
  all.push_back({"bfloat16 with feedback", {.options = {.bucket_cap_mb = 0.004}, .hook = [] {
                                              return make_compress_hook(torch::kBFloat16, {.error_feedback = true});
                                            }}});
  all.push_back(
      {"wrapped", {.hook = [] { return make_compress_wrapper(torch::kBFloat16, make_compress_hook(torch::kHalf)); }}});
  all.push_back({"no-op", {.hook = [] { return make_noop_hook(); }}});
  return all;
}

class DeviceStreamsMulti : public testing::TestWithParam<int> {};

TEST_P(DeviceStreamsMulti, GiveTheWeightsOfTheProcessor) {
  run_on_streams(GetParam(), [](int rank, torch::Device device) {
    for (const auto& [name, variant] : stream_variants()) {
      const State expected = train(torch::kCPU, rank, variant);
      expect_same(train(device, rank, variant), expected, name);
    }
  });
}

TEST(DeviceStreamsPowerSgdMulti, GivesTheWeightsOfTheProcessor) {
  run_on_streams(2, [](int rank, torch::Device device) {
    const Variant variant{.options = {.bucket_cap_mb = 0.004, .gradient_as_bucket_view = false},
                          .hook = [] { return make_power_sgd_hook({.start_power_sgd_iter = 1}); }};
    const State expected = train(torch::kCPU, rank, variant);
    expect_near(train(device, rank, variant), expected, 1e-3, 1e-5, "PowerSGD");
  });
}

// After the first pass, which builds the buckets. A rank that lacks a gradient must know whether another one has it.
TEST_P(DeviceStreamsMulti, LetTheProgramRunAhead) {
  run_on_streams(GetParam(), [](int rank, torch::Device device) {
    for (const auto& [name, given] : stream_variants()) {
      Variant variant = given;
      int steps = 0;
      variant.before_backward = [] { reset_traffic(); };
      variant.after_step = [&, name = name] {
        const bool asks = variant.partly && rank == 0;
        if (steps++ == 0) return;
        EXPECT_EQ(host_waits(device.index()), asks ? 1 : 0) << name << ", step " << steps;
      };
      train(device, rank, variant);
      EXPECT_GT(steps, 1);
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Worlds, DeviceStreamsMulti, testing::Values(2, 3));

struct TwoStreamsImpl : torch::nn::Module {
  TwoStreamsImpl() {
    first = register_parameter("first", torch::ones({50}));
    second = register_parameter("second", torch::ones({50}));
  }
  torch::Tensor first;
  torch::Tensor second;
};
TORCH_MODULE(TwoStreams);

// Its gradient is a copy that waits in the stream on which forward ran.
struct LateGradient : torch::autograd::Function<LateGradient> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, double value) {
    context->saved_data["value"] = value;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {torch::full_like(gradients[0], context->saved_data["value"].toDouble()), torch::Tensor()};
  }
};

// Autograd adds a gradient up on the stream on which it first saw the parameter. The forward pass uses two, and a graph
// from before the wrapper keeps one of them alive.
class DeviceSeveralStreamsMulti : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Gradients, DeviceSeveralStreamsMulti, testing::Bool());

TEST_P(DeviceSeveralStreamsMulti, AreAwaitedByTheBucket) {
  run_on_streams(2, [as_views = GetParam()](int rank, torch::Device device) {
    TwoStreams net;
    net->to(device);
    const c10::Stream beside = device::next_stream(device.index());
    const torch::Tensor seen_before = [&] {
      const c10::StreamGuard guard(beside);
      return net->second * 1;
    }();
    // Gradients of their own are not freed, which would wait for their stream.
    DistributedDataParallel<TwoStreams> ddp(net, {.gradient_as_bucket_view = as_views});
    for (int step = 0; step < 4; ++step) {
      for (const torch::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
      ddp->is_training();  // operator-> begins the pass
      const double value = 1.0 + step + rank;
      torch::Tensor sum = LateGradient::apply(net->first, value).sum();
      {
        const c10::StreamGuard guard(beside);
        sum = sum + LateGradient::apply(net->second, 2 * value).sum();
      }
      sum.backward();
      EXPECT_EQ(net->first.grad().cpu()[49].item<double>(), 1.5 + step) << "step " << step;
      EXPECT_EQ(net->second.grad().cpu()[49].item<double>(), 3 + 2 * step) << "step " << step;
    }
    for (const torch::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
    (seen_before.sum() * (1 + rank)).backward();
    EXPECT_EQ(net->second.grad().cpu()[49].item<double>(), 1.5) << "a graph from before";
  });
}

// As the Trainer does it.
TEST(DeviceStreamsFiniteCheckMulti, LetsTheProgramRunAhead) {
  run_on_streams(2, [](int /*rank*/, torch::Device device) {
    ConvNet net;
    net->to(device);
    FiniteCheck check(*net, {.checks_per_sweep = 3});
    const torch::Tensor loss = torch::ones({}, device);
    check.check(loss);
    reset_traffic();
    for (int step = 0; step < 7; ++step) EXPECT_TRUE(check.check(loss));
    EXPECT_EQ(host_waits(device.index()), 0);
  });
}

// State that was read to the device, on another stream than the hook's.
TEST(DeviceStreamsHookMulti, KeepsWhatWasLoaded) {
  run_on_streams(2, [](int rank, torch::Device device) {
    const auto make = [] { return make_compress_hook(torch::kHalf, {.error_feedback = true}); };
    const auto pass = [&](ConvNet& net, const std::shared_ptr<CommHook>& hook, int passes) {
      net->to(device);
      DistributedDataParallel<ConvNet> ddp(net);
      ddp.register_comm_hook(hook);
      torch::manual_seed(rank);
      for (int i = 0; i < passes; ++i) {
        ddp->is_training();
        loss_on(net, device).backward();
      }
    };
    ConvNet net;
    const auto saved = make();
    pass(net, saved, 2);
    const auto loaded = make();
    {
      std::map<std::string, torch::Tensor> state;
      for (const auto& [name, tensor] : saved->tensors()) state[name] = tensor.cpu().to(device);
      loaded->load(state);
    }
    ConvNet next;
    pass(next, loaded, 2);
    for (const torch::Tensor& parameter : next->parameters())
      EXPECT_TRUE(parameter.grad().cpu().isfinite().all().item<bool>());
  });
}

struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 3)));
    norm = register_module("norm", SyncBatchNorm(6));
    out = register_module("out", torch::nn::Linear(6, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(norm(conv(x)).mean({2, 3})); }
  torch::nn::Conv2d conv{nullptr};
  SyncBatchNorm norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(NormNet);

State train_synchronised(torch::Device device, int rank) {
  torch::manual_seed(3);
  NormNet net;
  net->to(device);
  DistributedDataParallel<NormNet> ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(10 * step + rank);
    const torch::Tensor x = torch::randn({2 + rank, 2, 6, 5}).to(device);
    const torch::Tensor y = torch::randint(3, {2 + rank}, torch::kLong).to(device);
    reset_traffic();
    optimizer.zero_grad();
    torch::cross_entropy_loss(ddp.forward(x), y).backward();
    optimizer.step();
    if (device.is_cpu() || step == 0) continue;
    EXPECT_EQ(host_waits(device.index()), 0) << "step " << step;
  }
  State state;
  for (const torch::Tensor& tensor : net->parameters()) state.push_back(tensor.detach().cpu());
  for (const torch::Tensor& tensor : net->buffers()) state.push_back(tensor.cpu());
  return state;
}

TEST(DeviceStreamsSyncBatchNormMulti, LetsTheProgramRunAhead) {
  run_on_streams(3, [](int rank, torch::Device device) {
    const State expected = train_synchronised(torch::kCPU, rank);
    expect_near(train_synchronised(device, rank), expected, 1e-4, 1e-5, "tensor");
  });
}

// One value per channel on each rank is enough together, none is not. Only a rank with so few must ask.
TEST(DeviceStreamsSyncBatchNormMulti, CountsTheValuesOfAllRanks) {
  run_on_streams(2, [](int rank, torch::Device device) {
    SyncBatchNorm norm(3);
    norm->to(device);
    const auto of = [&](std::int64_t rows) { return torch::ones({rows, 3}).to(device); };
    EXPECT_TRUE(torch::equal(norm->forward(of(1)).cpu(), torch::zeros({1, 3})));
    EXPECT_EQ(norm->forward(of(rank == 0 ? 0 : 2)).size(0), rank == 0 ? 0 : 2);
    EXPECT_ANY_THROW(norm->forward(of(rank)));
  });
}

}  // namespace
}  // namespace lockstep::test
