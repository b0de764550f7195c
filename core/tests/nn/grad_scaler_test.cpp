// Loss scaling: which steps are taken, what becomes of the scale, and that all ranks do the same.
// tests/parity/grad_scaler_parity_test.cpp compares numbers with PyTorch's.
#include "lockstep/nn/grad_scaler.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/mixed_precision.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using Net = torch::nn::Sequential;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class GradScalerMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, GradScalerMulti, testing::Values(1, 2, 3));

// A gradient of one rank alone that is not finite: all ranks skip the step, also of an optimizer that waits for all.
TEST_P(GradScalerMulti, AllRanksSkipTheStepOfOne) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int last = get_world_size() - 1;
    torch::Tensor weight = torch::ones({3}).requires_grad_();
    const std::vector<torch::Tensor> parameters{weight};
    ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(parameters, torch::optim::SGDOptions(1));
    GradScaler scaler({.init_scale = 8, .growth_interval = 2});
    std::vector<bool> taken;
    std::vector<double> scales;
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      scaler.scale(weight.sum()).backward();
      EXPECT_EQ(weight.grad()[0].item<double>(), scaler.get_scale());
      if (step == 1 && number == last) weight.mutable_grad()[2] = kInfinity;
      if (step == 4) {
        scaler.unscale_(optimizer);
        EXPECT_EQ(weight.grad()[0].item<double>(), 1);
      }
      taken.push_back(scaler.step(optimizer));
      scaler.update();
      scales.push_back(scaler.get_scale());
    }
    EXPECT_EQ(taken, (std::vector<bool>{true, false, true, true, true, true}));
    EXPECT_EQ(scales, (std::vector<double>{8, 4, 4, 8, 8, 16}));
    EXPECT_TRUE(torch::equal(weight, torch::full({3}, -4.0F)));
  });
}

// Gradients of one of two optimizers are not finite: the other takes its step, and the scale becomes smaller.
TEST_P(GradScalerMulti, OneOfTwoOptimizersSkipsItsStep) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const std::size_t failing : {0U, 1U}) {
      std::vector<torch::Tensor> weights;
      std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
      for (int i = 0; i < 2; ++i) {
        weights.push_back(torch::ones({2}).requires_grad_());
        optimizers.push_back(std::make_unique<torch::optim::SGD>(std::vector<torch::Tensor>{weights.back()},
                                                                 torch::optim::SGDOptions(1)));
      }
      GradScaler scaler({.init_scale = 8, .growth_interval = 2});
      const auto step = [&](bool fails) {
        for (const auto& optimizer : optimizers) optimizer->zero_grad();
        scaler.scale(weights[0].sum() + weights[1].sum()).backward();
        if (fails && number == 0) weights[failing].mutable_grad()[1] = kInfinity;
        for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(scaler.step(*optimizers[i]), !fails || i != failing) << i;
        scaler.update();
        return scaler.get_scale();
      };
      EXPECT_EQ(step(false), 8);
      EXPECT_EQ(step(true), 4);
      EXPECT_EQ(step(false), 4) << "the good step before the skipped one does not count";
      EXPECT_EQ(step(false), 8);
      EXPECT_TRUE(torch::equal(weights[failing], torch::full({2}, -2.0F)));
      EXPECT_TRUE(torch::equal(weights[1 - failing], torch::full({2}, -3.0F)));
    }
  });
}

TEST(GradScalerErrorsMulti, ScalesThatDifferAreNamed) {
  run_processes(2, [](int number) {
    const Rank rank;
    torch::Tensor weight = torch::ones({1}).requires_grad_();
    torch::optim::SGD optimizer(std::vector<torch::Tensor>{weight}, torch::optim::SGDOptions(1));
    GradScaler scaler({.init_scale = number == 0 ? 8.0 : 16.0});
    scaler.scale(weight.sum()).backward();
    expect_in(error_of([&] { scaler.step(optimizer); }),
              {"the scale is 8 on rank 0 and 16 on rank 1", "load_state_dict"});
    EXPECT_EQ(weight.item<double>(), 1);
    scaler.update(8);
    optimizer.zero_grad();
    scaler.scale(weight.sum()).backward();
    EXPECT_TRUE(scaler.step(optimizer));
    EXPECT_EQ(weight.item<double>(), 0);
  });
}

TEST(GradScaler, RefusesCallsOutOfOrder) {
  Net net(torch::nn::Linear(2, 2));
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  GradScaler scaler;
  expect_in(error_of([&] { scaler.update(); }), {"update() before step()"});
  expect_in(error_of([&] { scaler.step(optimizer, nullptr); }), {"expected a function that takes the step"});
  expect_in(error_of([&] { scaler.step(optimizer); }), {"no parameter", "backward()"});
  expect_in(error_of([&] { scaler.update(); }), {"update() before step()"});
  scaler.scale(net->forward(torch::ones({1, 2})).sum()).backward();
  scaler.unscale_(optimizer);
  expect_in(error_of([&] { scaler.unscale_(optimizer); }), {"unscale_()", "already"});
  EXPECT_TRUE(scaler.step(optimizer));
  expect_in(error_of([&] { scaler.step(optimizer); }), {"step()", "already"});
  expect_in(error_of([&] { scaler.unscale_(optimizer); }), {"unscale_() after step()"});
  expect_in(error_of([] { GradScaler({.growth_factor = 1}); }), {"growth_factor", "above 1", "got 1"});
  expect_in(error_of([] { GradScaler({.backoff_factor = 1}); }), {"backoff_factor"});
  expect_in(error_of([] { GradScaler({.growth_interval = 0}); }), {"growth_interval", "got 0"});
  expect_in(error_of([] { GradScaler({.init_scale = -1}); }), {"init_scale", "got -1"});
}

// Throws at its first step.
struct FailingSgd : torch::optim::SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    TORCH_CHECK(!std::exchange(fails, false), "no step");
    return SGD::step(closure);
  }
  bool fails = true;
};

// A step that threw counts neither as good nor as skipped, and may be taken again.
TEST(GradScaler, DoesNotCountAStepThatThrew) {
  torch::Tensor weight = torch::ones({1}).requires_grad_();
  torch::Tensor other = torch::ones({1}).requires_grad_();
  FailingSgd optimizer(std::vector<torch::Tensor>{weight}, torch::optim::SGDOptions(1));
  torch::optim::SGD second(std::vector<torch::Tensor>{other}, torch::optim::SGDOptions(1));
  GradScaler scaler({.init_scale = 8, .growth_interval = 1});
  const auto backward = [&](const torch::Tensor& factor) {
    optimizer.zero_grad();
    second.zero_grad();
    scaler.scale(weight.sum() + other.sum() * factor).backward();
  };
  backward(torch::ones({}));
  expect_in(error_of([&] { scaler.step(optimizer); }), {"no step"});
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8);

  optimizer.fails = true;
  backward(torch::ones({}));
  expect_in(error_of([&] { scaler.step(optimizer); }), {"no step"});
  expect_in(error_of([&] { scaler.unscale_(optimizer); }), {"unscale_()", "already"});
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(weight.item<double>(), 0) << "its gradient was divided once";
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 16);

  optimizer.fails = true;
  backward(torch::full({}, kInfinity));
  expect_in(error_of([&] { scaler.step(optimizer); }), {"no step"});
  EXPECT_FALSE(scaler.step(second));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8) << "the other optimizer skipped its step";
}

// Module::parameters() has a parameter that two layers share twice.
TEST(GradScaler, DividesTheGradientOfASharedParameterOnce) {
  torch::nn::Linear layer(2, 2);
  Net net(layer, layer);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  ASSERT_EQ(optimizer.param_groups().front().params().size(), 4U);
  net->forward(torch::ones({1, 2})).sum().backward();
  const torch::Tensor expected = layer->weight.grad().clone();
  GradScaler scaler({.init_scale = 1024});
  optimizer.zero_grad();
  scaler.scale(net->forward(torch::ones({1, 2})).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::equal(layer->weight.grad(), expected));
}

TEST(GradScaler, DisabledItTakesEveryStep) {
  torch::Tensor weight = torch::ones({1}).requires_grad_();
  torch::optim::SGD optimizer(std::vector<torch::Tensor>{weight}, 1.0);
  GradScaler scaler({.enabled = false});
  const torch::Tensor loss = weight.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  loss.backward();
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(weight.item<double>(), 0);
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
}

TEST(GradScaler, TakesTheStepThatItIsGiven) {
  torch::Tensor weight = torch::ones({3}).requires_grad_();
  torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(1));
  GradScaler scaler({.init_scale = 8});
  int taken = 0;
  for (const bool finite : {true, false, true}) {
    optimizer.zero_grad();
    scaler.scale(weight.sum()).backward();
    if (!finite) weight.mutable_grad()[0] = kInfinity;
    const auto take = [&](torch::optim::Optimizer& one) { taken += fused_step(one) ? 1 : 0; };
    EXPECT_EQ(scaler.step(optimizer, take), finite);
    scaler.update();
  }
  EXPECT_EQ(taken, 2);
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, -1.0F)));
}

TEST(GradScaler, ItsStateContinues) {
  torch::Tensor weight = torch::ones({1}).requires_grad_();
  torch::optim::SGD optimizer(std::vector<torch::Tensor>{weight}, 0.0);
  GradScaler scaler({.init_scale = 4, .growth_factor = 3, .growth_interval = 2});
  const auto step = [&](GradScaler& one) {
    optimizer.zero_grad();
    one.scale(weight.sum()).backward();
    one.step(optimizer);
    one.update();
    return one.get_scale();
  };
  step(scaler);
  GradScaler resumed;
  resumed.load_state_dict(scaler.state_dict());
  EXPECT_EQ(resumed.state_dict(), scaler.state_dict());
  EXPECT_EQ(step(resumed), 12);
  auto wrong = scaler.state_dict();
  wrong.erase("_growth_tracker");
  expect_in(error_of([&] { resumed.load_state_dict(wrong); }), {"'_growth_tracker' is missing"});
  expect_in(error_of([&] { resumed.load_state_dict({}); }), {"empty", "not enabled"});
  scaler.update(2.5);
  EXPECT_EQ(scaler.get_scale(), 2.5);
}

TEST(GradScaler, WarnsOfAScaleThatOnlyFalls) {
  std::string logged;
  log::set_output([&](std::string_view line) { logged += line; });
  torch::Tensor weight = torch::ones({1}).requires_grad_();
  torch::optim::SGD optimizer(std::vector<torch::Tensor>{weight}, 1.0);
  GradScaler scaler({.init_scale = 4});
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    scaler.scale(weight.sum() * std::nan("")).backward();
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
  }
  log::set_output({});
  EXPECT_EQ(scaler.get_scale(), 0.25);
  expect_in(logged, {"the scale has fallen to 0.5"});
  EXPECT_EQ(weight.item<double>(), 1);
}

// A model in half precision: steps are taken on float copies, whose gradients are unscaled.
TEST_P(GradScalerMulti, HalfParametersNeedMasters) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Net net(torch::nn::Linear(4, 4));
    net->to(torch::kHalf);
    DistributedDataParallel<Net> ddp(net);
    MasterWeights masters(*net);
    torch::optim::SGD on_half(net->parameters(), 1.0);
    torch::optim::SGD optimizer(masters.parameters(), 1.0);
    GradScaler scaler({.init_scale = 1024});
    {
      const torch::NoGradGuard no_grad;
      masters.parameters()[1].zero_();
    }
    const torch::Tensor loss = ddp->forward(torch::ones({1, 4}, torch::kHalf)).sum().to(torch::kFloat) * 1e-6;
    scaler.scale(loss).backward();
    expect_in(error_of([&] { scaler.step(on_half); }), {"half precision", "MasterWeights"});
    masters.copy_gradients();
    EXPECT_TRUE(scaler.step(optimizer));
    masters.copy_parameters();
    scaler.update();
    // Half has no number nearer to 1e-6 than 0.95e-6 and 1.01e-6.
    EXPECT_NEAR(masters.parameters()[1][0].item<double>(), -1e-6, 1e-9);
  });
}

}  // namespace
}  // namespace lockstep::test
