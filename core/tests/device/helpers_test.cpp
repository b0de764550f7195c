// Helpers of training whose tensors are on devices, against the same on the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "device/conv_net.h"
#include "device/device_ranks.h"
#include "lockstep/nn/average_gradients.h"
#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/exponential_moving_average.h"
#include "lockstep/nn/finite_check.h"
#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mixed_precision.h"
#include "nn/error_texts.h"

namespace lockstep::test {
namespace {

void expect_all_on(const ConvNet& net, torch::Device device) {
  for (const torch::Tensor& parameter : net->parameters()) EXPECT_EQ(parameter.device(), device);
  for (const torch::Tensor& buffer : net->buffers()) EXPECT_EQ(buffer.device(), device);
}

// The averages, the model while it has them, and the model afterwards.
State moving_average(torch::Device device) {
  torch::manual_seed(3);
  ConvNet net;
  net->to(device);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  ExponentialMovingAverage average(*net, {.decay = 0.8});
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    loss_on(net, device).backward();
    optimizer.step();
    average.update();
  }
  State state;
  for (const auto& [name, tensor] : average.tensors()) {
    EXPECT_EQ(tensor.device(), device) << name;
    state.push_back(tensor.cpu().clone());
  }
  {
    const auto guard = average.swap_in();
    expect_all_on(net, device);
    for (const torch::Tensor& tensor : state_of(net)) state.push_back(tensor);
  }
  for (const torch::Tensor& tensor : state_of(net)) state.push_back(tensor);
  return state;
}

TEST(DeviceMovingAverage, IsThatOfTheProcessor) {
  use_test_device();
  expect_same(moving_average(test_device(2)), moving_average(torch::kCPU), "average");
}

// Saved averages come on the CPU, and a model may move after its average was made.
TEST(DeviceMovingAverage, StaysWhereItWasMade) {
  use_test_device();
  ConvNet saved;
  ConvNet net;
  net->to(test_device(1));
  ExponentialMovingAverage average(*net, {.decay = 0.5});
  average.load(ExponentialMovingAverage(*saved).tensors(), 1);
  net->to(test_device(2));
  average.update();
  const torch::Tensor expected = torch::lerp(saved->out->weight.detach(), net->out->weight.detach().cpu(), 0.5);
  expect_on_device(average.tensors().at("out.weight"), test_device(1), expected, "average");
  const auto guard = average.swap_in();
  expect_on_device(net->out->weight.detach(), test_device(2), expected, "model");
}

State train_with_averages(torch::Device device, int rank) {
  torch::manual_seed(7 + rank);
  ConvNet net;
  net->to(device);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    loss_on(net, device, /*all=*/rank == 0).backward();
    average_gradients(net->out->parameters());
    optimizer.step();
  }
  expect_all_on(net, device);
  return state_of(net);
}

TEST(DeviceAveragesMulti, AreThoseOfTheProcessor) {
  run_on_devices(2, [](int rank, torch::Device device) {
    const State expected = train_with_averages(torch::kCPU, rank);
    expect_same(train_with_averages(device, rank), expected, "averages");
  });
}

// Each rank has a part of its model on a device of its own, a part on the next one, and a part on the CPU.
TEST(DeviceAveragesMulti, OfModelsOnSeveralDevices) {
  run_on_devices(2, [](int rank, torch::Device device) {
    const std::vector<torch::Device> devices{device, test_device(2 + rank), torch::kCPU, device};
    std::vector<torch::Tensor> parameters;
    for (const torch::Device where : devices) {
      parameters.push_back(torch::full({3}, 2.0F * rank, torch::TensorOptions(where).requires_grad(true)));
      parameters.back().mutable_grad() = torch::full({3}, 4.0F * rank, where);
    }
    average_gradients(parameters);
    for (std::size_t i = 0; i < devices.size(); ++i) {
      expect_on_device(parameters[i].grad(), devices[i], torch::full({3}, 2.0F), c10::str("gradient ", i));
    }
  });
}

// Scaled losses and clipped gradients; one rank has a loss that is not finite. Norms, decisions and scales are part of
// the result.
State scale_and_clip(torch::Device device, int rank) {
  torch::manual_seed(7 + rank);
  ConvNet net;
  net->to(device);
  DistributedDataParallel<ConvNet> ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  State state;
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    ddp->is_training();  // operator-> begins the pass
    torch::Tensor loss = loss_on(net, device);
    if (step == 3 && rank == 1) loss = loss * std::numeric_limits<double>::infinity();
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    const double norm = clip_grad_norm_(*net, 0.5);
    const bool taken = scaler.step(optimizer);
    scaler.update();
    EXPECT_EQ(taken, step != 3);
    state.push_back(torch::tensor({std::isfinite(norm) ? norm : -1, scaler.get_scale()}, torch::kDouble));
  }
  expect_all_on(net, device);
  for (const torch::Tensor& tensor : state_of(net)) state.push_back(tensor);
  return state;
}

TEST(DeviceScalerMulti, ScalesAndClipsAsOnTheProcessor) {
  run_on_devices(2, [](int rank, torch::Device device) {
    const State expected = scale_and_clip(torch::kCPU, rank);
    expect_same(scale_and_clip(device, rank), expected, "scaled");
  });
}

// A model whose layers are on several devices has one norm, and is scaled as a whole.
TEST(DeviceScaler, ServesModelsOnSeveralDevices) {
  use_test_device();
  std::vector<NamedParameter> named;
  std::vector<torch::Tensor> parameters;
  for (const torch::Device device : {test_device(1), torch::Device(torch::kCPU), test_device(0)}) {
    parameters.push_back(torch::zeros({4}, torch::TensorOptions(device).requires_grad(true)));
    parameters.back().mutable_grad() = torch::full({4}, 8.0F, device);
    named.push_back({parameters.back().device().str(), parameters.back()});
  }
  torch::optim::SGD optimizer(parameters, 1.0);
  GradScaler scaler({.init_scale = 4});
  scaler.unscale_(optimizer);
  EXPECT_FLOAT_EQ(clip_grad_norm_(named, 1e9), std::sqrt(12 * 4.0F));
  EXPECT_EQ(clip_grad_norm_(named, 1, {.norm_type = std::numeric_limits<double>::infinity()}), 2);
  EXPECT_TRUE(scaler.step(optimizer));
  for (const torch::Tensor& parameter : parameters)
    EXPECT_TRUE(torch::allclose(parameter.detach().cpu(), torch::full({4}, -1.0F)));
  parameters[2].mutable_grad()[1] = std::numeric_limits<float>::quiet_NaN();
  expect_in(error_of([&] { clip_grad_norm_(named, 1, {.error_if_nonfinite = true}); }),
            {"'" + test_device(0).str() + "'"});
}

// Rank 1 has a batch of NaN in one step: all ranks skip it, and running statistics become what they were.
State skip_what_is_not_finite(torch::Device device, int rank) {
  torch::manual_seed(7 + rank);
  ConvNet net;
  net->to(device);
  DistributedDataParallel<ConvNet> ddp(net, {.broadcast_buffers = false});
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  FiniteCheck check(*net, {.policy = NonFinitePolicy::kSkip});
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    torch::Tensor x = torch::randn({6, 1, 8, 8}, test_device_float()).to(device);
    if (step == 2 && rank == 1) x.fill_(std::numeric_limits<float>::quiet_NaN());
    const torch::Tensor loss = ddp->forward(x).square().mean();
    loss.backward();
    const bool finite = check.check(loss);
    EXPECT_EQ(finite, step != 2);
    if (finite) optimizer.step();
  }
  expect_all_on(net, device);
  return state_of(net);
}

TEST(DeviceFiniteCheckMulti, SkipsAsOnTheProcessor) {
  run_on_devices(2, [](int rank, torch::Device device) {
    const State expected = skip_what_is_not_finite(torch::kCPU, rank);
    for (const torch::Tensor& tensor : expected) EXPECT_TRUE(tensor.isfinite().all().item<bool>());
    expect_same(skip_what_is_not_finite(device, rank), expected, "skipped");
  });
}

TEST(DeviceFiniteCheckMulti, NamesTheParameterThatIsNotFinite) {
  run_on_devices(2, [](int rank, torch::Device device) {
    ConvNet net;
    net->to(device);
    FiniteCheck check(*net, {.checks_per_sweep = 3});
    const torch::Tensor loss = torch::ones({}, device);
    for (int step = 0; step < 4; ++step) EXPECT_TRUE(check.check(loss));
    check.check_parameters();
    const torch::NoGradGuard no_grad;
    if (rank == 1) net->hidden->bias[3] = std::numeric_limits<float>::quiet_NaN();
    const std::string text = error_of([&] { check.check_parameters(); });
    expect_in(text, {rank == 1 ? "'hidden.bias'" : "of other ranks are not finite"});
  });
}

// A sweep looks at each loss one check later, which it need not wait for.
TEST(DeviceFiniteCheckMulti, FindsTheLossOfTheStepBefore) {
  run_on_devices(2, [](int rank, torch::Device device) {
    ConvNet net;
    net->to(device);
    const torch::Tensor good = torch::ones({}, device);
    const torch::Tensor bad = rank == 1 ? good / 0 : good;
    FiniteCheck check(*net, {.checks_per_sweep = 3});
    EXPECT_TRUE(check.check(good));
    EXPECT_TRUE(check.check(bad));
    const std::string late = error_of([&] { check.check(good); });
    expect_in(late, {"step 2: in step 1 the loss of rank 1 was inf"});
    EXPECT_EQ(late.find("parameter"), std::string::npos) << late;
    EXPECT_TRUE(check.check(bad));
    expect_in(error_of([&] { check.check_parameters(); }), {"before step 4: in step 3 the loss of rank 1 was inf"});
    check.check_parameters();
    EXPECT_TRUE(check.check(good)) << "what was found is forgotten";
    check.check_parameters();
    EXPECT_TRUE(check.check(bad));
    expect_in(error_of([&] { check.check(good, /*gradient_norm=*/1); }),
              {"step 6: in step 5 the loss of rank 1 was inf"});
    EXPECT_NE(error_of([&] { check.check(torch::ones({2}, device)); }).find("a loss of one number"), std::string::npos);
  });
}

// Master weights and autocast: the wrapper's gradients are float, or those of bfloat16 parameters.
State train_in_bfloat16(torch::Device device, int rank, bool masters) {
  torch::manual_seed(7 + rank);
  torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  net->to(device);
  if (masters) net->to(torch::kBFloat16);
  DistributedDataParallel<torch::nn::Sequential> ddp(net);
  MasterWeights weights(*net);
  torch::optim::SGD optimizer(weights.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    net->zero_grad();
    const torch::Tensor x = torch::randn({4, 6}).to(device, masters ? torch::kBFloat16 : torch::kFloat);
    torch::Tensor loss;
    {
      const Autocast autocast(device.type());
      const torch::Tensor y = ddp->forward(x);
      EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
      loss = y.to(torch::kFloat).square().mean();
    }
    loss.backward();
    const torch::Tensor gradient = net->parameters()[0].grad();
    EXPECT_EQ(gradient.scalar_type(), masters ? torch::kBFloat16 : torch::kFloat);
    EXPECT_EQ(gradient.device(), device);
    weights.step(optimizer);
  }
  const torch::Tensor ones = torch::ones({2, 2}, device);
  EXPECT_EQ(torch::linear(ones, ones).scalar_type(), torch::kFloat) << "autocast ends with its scope";
  State state;
  for (const torch::Tensor& parameter : weights.parameters()) {
    EXPECT_EQ(parameter.device(), device);
    state.push_back(parameter.detach().cpu().clone());
  }
  return state;
}

TEST(DeviceMixedPrecisionMulti, TrainsAsOnTheProcessor) {
  run_on_devices(2, [](int rank, torch::Device device) {
    for (const bool masters : {false, true}) {
      const State expected = train_in_bfloat16(torch::kCPU, rank, masters);
      const State actual = train_in_bfloat16(device, rank, masters);
      ASSERT_EQ(actual.size(), expected.size());
      // The CPU has more operations that take bfloat16 in a scope than the device.
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-2, 1e-3)) << masters << ' ' << i;
    }
  });
}

}  // namespace
}  // namespace lockstep::test
