// What stands around the wrapper: accumulation, clipping, checks for NaN, averages of parameters, mixed precision.
// tests/parity/ddp_options_parity_test.cpp compares their numbers with PyTorch's.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/log.h"
#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/exponential_moving_average.h"
#include "lockstep/nn/finite_check.h"
#include "lockstep/nn/gradient_accumulation.h"
#include "lockstep/nn/mixed_precision.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using Net = torch::nn::Sequential;

Net make_net() {
  torch::manual_seed(1);
  return Net(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 3));
}

Net make_plain() {
  torch::manual_seed(1);
  return Net(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
}

class TrainingHelpersMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TrainingHelpersMulti, testing::Values(1, 2, 3));

// Rank r has r samples in a step: the gradient is that of one process with all of them.
TEST_P(TrainingHelpersMulti, SampleMeanOverUnevenAndEmptyBatches) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int world = get_world_size();
    if (world == 1) {
      expect_in(error_of([] { sample_mean_factor(0); }), {"no rank has a sample"});
      return;
    }
    Net net = make_plain();
    Net alone = make_plain();
    DistributedDataParallel<Net> ddp(net);
    const torch::Tensor all = random_input({world * (world - 1) / 2, 6}, 0, /*rank=*/0);
    const torch::Tensor mine = all.narrow(0, number * (number - 1) / 2, number);
    const auto losses = [](const torch::Tensor& y) { return y.square().sum(1); };
    const torch::Tensor loss = losses(ddp->forward(mine)).sum() * sample_mean_factor(mine.size(0));
    loss.backward();
    losses(alone->forward(all)).mean().backward();
    expect_same_gradients(*net, *alone, "one step", {1e-5, 1e-7});
    // The same in two micro-batches, the first of which is empty on rank 1.
    net->zero_grad();
    const double factor = sample_mean_factor(number);
    accumulate_gradients(ddp, 2,
                         [&](int part) {
                           const std::int64_t half = number / 2;
                           const torch::Tensor x =
                               part == 0 ? mine.narrow(0, 0, half) : mine.narrow(0, half, number - half);
                           return losses(ddp->forward(x)).sum() * factor;
                         },
                         {.mean = false});
    expect_same_gradients(*net, *alone, "two micro-batches", {1e-5, 1e-7});
    expect_in(error_of([&] { accumulate_gradients(ddp, 0, [&](int) { return torch::Tensor(); }); }),
              {"at least one", "0"});
  });
}

TEST_P(TrainingHelpersMulti, AccumulationSendsOnce) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Net> twins(make_plain);
    for (int step = 0; step < 3; ++step) {
      const std::size_t before = twins.ddp.reducer().sent().total;
      twins.model->zero_grad();
      twins.twin->zero_grad();
      const auto loss = [&](Net& net, int part) {
        return net->forward(random_input({4, 6}, 3 * step + part)).square().mean();
      };
      const torch::Tensor total = accumulate_gradients(
          twins.ddp, 3, [&](int part) { return loss((twins.ddp->is_training(), twins.model), part); });
      torch::Tensor expected = torch::zeros({});
      for (int part = 0; part < 3; ++part) {
        const torch::Tensor one = loss(twins.twin, part) / 3;
        one.backward();
        expected = expected + one.detach();
      }
      average_gradients(twins.twin);
      expect_same_gradients(*twins.model, *twins.twin, fmt::format("step {}", step));
      EXPECT_TRUE(torch::equal(total, expected));
      EXPECT_EQ(twins.ddp.reducer().sent().total - before, twins.ddp.reducer().sent().last_pass);
    }
  });
}

TEST(ClipGrad, ScalesToTheNormAndNamesWhatIsNotFinite) {
  Net net = make_plain();
  for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  net->parameters()[3].mutable_grad().reset();
  const double norm = std::sqrt(6 * 8 + 8 + 8 * 3);
  EXPECT_NEAR(clip_grad_norm_(*net, 100), norm, 1e-5);
  EXPECT_EQ(net->parameters()[0].grad()[0][0].item<double>(), 1) << "under the limit nothing changes";
  EXPECT_NEAR(clip_grad_norm_(*net, 2), norm, 1e-5);
  EXPECT_NEAR(clip_grad_norm_(*net, 2), 2, 1e-5);
  EXPECT_NEAR(clip_grad_norm_(*net, 1, {.norm_type = std::numeric_limits<double>::infinity()}), 2 / norm, 1e-5);
  net->parameters()[2].mutable_grad()[0][1] = std::nan("");
  const NamedParameter one{"weight", net->parameters()[0]};
  expect_in(error_of([&] { clip_grad_norm_({one, one}, 2); }), {"'weight' is there twice"});
  expect_in(error_of([&] { clip_grad_norm_(*net, 2, {.error_if_nonfinite = true}); }),
            {"nan", "the gradient of '2.weight'"});
  EXPECT_TRUE(net->parameters()[0].grad().isfinite().all().item<bool>()) << "an error changes nothing";
  torch::nn::Embedding rows(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  rows->forward(torch::tensor({1, 1, 3})).sum().backward();
  EXPECT_NEAR(clip_grad_norm_(*rows, 1), std::sqrt(2 * 4 + 2 * 1), 1e-5);
  EXPECT_NEAR(rows->weight.grad().to_dense().norm().item<double>(), 1, 1e-5);
  EXPECT_EQ(clip_grad_norm_(*Net(torch::nn::Tanh()), 1), 0);
}

TEST_P(TrainingHelpersMulti, StepsThatAreNotFiniteAreSkippedByAllRanksAlike) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int last = get_world_size() - 1;
    std::string logged;
    log::set_output([&](std::string_view line) { logged += line; });
    Net net = make_plain();
    DistributedDataParallel<Net> ddp(net);
    FiniteCheck skipping(*net, {.policy = NonFinitePolicy::kSkip, .max_consecutive_skips = 2});
    FiniteCheck strict(*net);
    strict.set_step(17);
    const auto loss_in = [&](int step, bool bad) {
      net->zero_grad();
      const torch::Tensor loss =
          ddp->forward(random_input({4, 6}, step)).square().mean() * (bad && number == last ? std::nan("") : 1.0);
      loss.backward();
      return loss;
    };
    for (int step = 0; step < 4; ++step) EXPECT_EQ(skipping.check(loss_in(step, step == 1)), step != 1);
    EXPECT_EQ(skipping.skipped(), 1);
    EXPECT_EQ(logged.find(fmt::format("step 1 is skipped: the loss of rank {} is nan", last)) != std::string::npos,
              number == 0);
    const torch::Tensor bad = loss_in(4, true);
    const std::string what = fmt::format("rank {}, step 17: the loss of rank {} is nan", number, last);
    expect_in(error_of([&] { strict.check(bad); }), {what, "gradient of '0.weight', '0.bias', '2.weight' and 1 other"});
    EXPECT_FALSE(skipping.check(bad));
    EXPECT_FALSE(skipping.check(bad));
    expect_in(error_of([&] { skipping.check(bad); }), {"step 6", "step 3 in a row", "max_consecutive_skips is 2"});
    // A finite loss whose gradients are not, on one rank alone.
    net->zero_grad();
    if (number == last) net->parameters()[1].mutable_grad() = torch::full({8}, std::numeric_limits<float>::infinity());
    expect_in(error_of([&] { strict.check(torch::ones({})); }),
              {"step 18", number == last ? "'0.bias' is not finite" : "gradients of other ranks are not finite"});
    log::set_output({});
  });
}

// Rank 0's buffers go to all ranks. The first step too.
TEST_P(TrainingHelpersMulti, ASkippedStepLeavesTheBuffersAsTheyWere) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    log::set_output([](std::string_view) {});
    Net net = make_net();
    DistributedDataParallel<Net> ddp(net);
    const auto statistics = [&] {
      return torch::cat({net->named_buffers()["1.running_mean"], net->named_buffers()["1.running_var"]});
    };
    FiniteCheck finite(*net, {.policy = NonFinitePolicy::kSkip});
    for (int step = 0; step < 5; ++step) {
      const bool bad = step == 0 || step == 3;
      const torch::Tensor before = statistics();
      torch::Tensor x = random_input({4, 6}, step);
      if (bad && number == 0) x.fill_(std::nan(""));
      net->zero_grad();
      const torch::Tensor loss = ddp->forward(x).square().mean();
      loss.backward();
      EXPECT_EQ(statistics().isfinite().all().item<bool>(), !bad);
      EXPECT_EQ(finite.check(loss), !bad);
      EXPECT_EQ(torch::equal(statistics(), before), bad) << "step " << step;
      finite.check_parameters();
    }
    torch::Tensor mean = net->named_buffers()["1.running_mean"];
    if (number == 0) mean[0] = std::nan("");
    expect_in(error_of([&] { finite.check_parameters(); }),
              {number == 0 ? "'1.running_mean' is not finite" : "other ranks are not finite"});
    log::set_output({});
  });
}

TEST(FiniteCheck, GivesBuffersBackAfterAStepThatAScalerSkips) {
  Net net = make_net();
  FiniteCheck finite(*net, {.policy = NonFinitePolicy::kSkip});
  torch::Tensor mean = net->named_buffers()["1.running_mean"];
  mean.fill_(0.5);
  finite.note_step(true);
  mean.fill_(std::numeric_limits<float>::infinity());
  finite.note_step(false);
  EXPECT_TRUE(torch::equal(mean, torch::full({8}, 0.5F)));
  EXPECT_EQ(finite.step(), 2);
  EXPECT_EQ(finite.skipped(), 1);
  expect_in(error_of([&] { FiniteCheck(*net).note_step(true); }), {"note_step()", "kSkip alone"});
}

// With a norm gradients are not read where it is finite. A sweep reads each parameter once, also those in several
// parts, and finds one that is not finite on one rank alone.
TEST_P(TrainingHelpersMulti, ChecksWithoutReadingAllGradients) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const torch::NoGradGuard no_grad;
    const int last = get_world_size() - 1;
    const double infinity = std::numeric_limits<double>::infinity();
    const torch::Tensor loss = torch::ones({});
    Net net = make_plain();
    for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
    net->parameters()[2].mutable_grad()[0][1] = std::nan("");
    FiniteCheck knows(*net);
    EXPECT_TRUE(knows.check(loss, 3.0));
    expect_in(error_of([&] { knows.check(loss, infinity); }), {"step 1: the gradient of '2.weight' is not finite"});
    expect_in(error_of([&] { FiniteCheck(*net, {.policy = NonFinitePolicy::kSkip, .checks_per_sweep = 2}); }),
              {"kSkip needs checks_per_sweep = 0"});

    constexpr int kChecks = 5;
    const std::string found = number == last ? " is not finite since an earlier step" : "parameters of other ranks";
    for (const char* bad : {"0.weight", "0.bias", "2.weight", "2.bias"}) {
      FiniteCheck sweeps(*net, {.checks_per_sweep = kChecks});
      for (int i = 0; i < kChecks; ++i) EXPECT_TRUE(sweeps.check(loss));  // not the gradients
      sweeps.check_parameters();
      torch::Tensor values = net->named_parameters()[bad].view({-1});
      const torch::Tensor before = values[-1].clone();
      if (number == last) values[-1] = infinity;
      std::string error;
      const auto check = [&] { sweeps.check(loss); };
      for (int i = 0; i < kChecks && error.find("step") == std::string::npos; ++i) error = error_of(check);
      expect_in(error, {found, "step "});
      if (number == last) expect_in(error, {"'" + std::string(bad) + "'"});
      expect_in(error_of([&] { sweeps.check_parameters(); }), {found, "before step "});
      values[-1] = before;
    }
    FiniteCheck sweeps(*net, {.checks_per_sweep = kChecks});
    expect_in(error_of([&] { sweeps.check(torch::full({}, number == 0 ? infinity : 1.0)); }),
              {"the loss of rank 0 is inf; the gradient of '2.weight' is not finite"});
  });
}

// A class that is never predicted, and a frozen mask, have such parameters. FiniteCheck skips only these.
TEST_P(TrainingHelpersMulti, ParametersThatAreInfiniteFromTheBegin) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const torch::NoGradGuard no_grad;
    const torch::Tensor loss = torch::ones({});
    Net net = make_plain();
    net->named_parameters()["2.bias"][1] = -std::numeric_limits<double>::infinity();
    net->register_buffer("mask", torch::full({2}, -std::numeric_limits<double>::infinity()));
    FiniteCheck sweeps(*net, {.checks_per_sweep = 2});
    sweeps.check_parameters();  // before any other check
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(sweeps.check(loss));
    sweeps.check_parameters();
    net->named_parameters()["0.bias"][1] = std::numeric_limits<double>::infinity();
    expect_in(error_of([&] { sweeps.check_parameters(); }), {"'0.bias' is not finite"});
    // A checkpoint may have them.
    sweeps.set_step(7);
    sweeps.check_parameters();
    EXPECT_TRUE(sweeps.check(loss));
  });
}

TEST(ExponentialMovingAverage, SwapsInForEvaluation) {
  Net net = make_net();
  ExponentialMovingAverage ema(*net, {.decay = 0.9});
  torch::Tensor weight = net->parameters()[0];
  torch::Tensor expected;
  for (int step = 0; step < 5; ++step) {
    net->forward(random_input({4, 6}, step, 0));  // running means and the count of batches move
    const torch::NoGradGuard no_grad;
    weight.add_(1);
    ema.update();
    expected = step == 0 ? weight.clone() : expected.lerp(weight, 0.1);
  }
  const std::map<std::string, torch::Tensor> saved = ema.tensors();
  const torch::Tensor own = weight.detach().clone();
  {
    const auto guard = ema.swap_in();
    EXPECT_TRUE(torch::equal(weight, expected));
    EXPECT_EQ(net->named_buffers()["1.num_batches_tracked"].item<int>(), 5) << "integers are copied";
    EXPECT_FALSE(torch::equal(net->named_buffers()["1.running_mean"], torch::zeros({8})));
    expect_in(error_of([&] { ema.update(); }), {"swapped in"});
    expect_in(error_of([&] { const auto second = ema.swap_in(); }), {"already"});
  }
  EXPECT_TRUE(torch::equal(weight, own));
  ExponentialMovingAverage resumed(*net, {.decay = 0.9});
  resumed.load(saved, ema.updates());
  EXPECT_TRUE(torch::equal(resumed.tensors().at("0.weight"), expected));
  auto wrong = saved;
  wrong.erase("0.bias");
  wrong["2.bias"] = torch::ones({4});
  wrong["other"] = torch::ones({1});
  expect_in(error_of([&] { resumed.load(wrong, 1); }),
            {"'0.bias' is missing", "'2.bias' is [4], expected [3]", "'other' is not in the module"});
  expect_in(error_of([&] { ExponentialMovingAverage(*net, {.decay = 1.5}); }), {"decay", "1.5"});
  weight.set_data(torch::ones({7, 6}));
  expect_in(error_of([&] { ema.update(); }), {"'0.weight' [7, 6]", "[8, 6]", "make a new average"});
  net->push_back(torch::nn::Linear(3, 3));
  expect_in(error_of([&] { const auto guard = ema.swap_in(); }), {"the module has 11", "had 9", "make a new average"});
}

TEST(ExponentialMovingAverage, KeepsSmallChangesOfBfloat16Values) {
  Net net(torch::nn::Linear(1, 1));
  net->to(torch::kBFloat16);
  ExponentialMovingAverage ema(*net, {.decay = 0.999});
  const torch::NoGradGuard no_grad;
  torch::Tensor weight = net->parameters()[0];
  weight.fill_(1);
  ema.update();
  weight.fill_(2);
  for (int step = 0; step < 100; ++step) ema.update();
  EXPECT_NEAR(ema.tensors().at("0.weight").item<double>(), 2 - std::pow(0.999, 100), 1e-4);
}

// Autocast with the wrapper: gradients are float and those of the mean.
TEST_P(TrainingHelpersMulti, AutocastInTheForwardPass) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Net> twins(make_plain);
    for (int step = 0; step < 3; ++step) {
      twins.step(
          [&](Net& net) {
            const Autocast autocast(torch::kCPU);
            const torch::Tensor y = net->forward(random_input({4, 6}, step));
            EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
            return y.to(torch::kFloat).square().mean();
          },
          fmt::format("step {}", step));
      EXPECT_EQ(twins.model->parameters()[0].grad().scalar_type(), torch::kFloat);
      twins.descend();
    }
    EXPECT_EQ(torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(), torch::kFloat);
    expect_in(error_of([] { Autocast(torch::kCPU, torch::kDouble); }), {"Autocast", "Double"});
  });
}

// Steps that bfloat16 would round away reach the parameters through their masters.
TEST_P(TrainingHelpersMulti, MasterWeightsTakeSmallSteps) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Net net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
    net->to(torch::kBFloat16);
    net[1]->as<torch::nn::BatchNorm1d>()->to(torch::kFloat);  // its parameters are their own masters
    DistributedDataParallel<Net> ddp(net);
    MasterWeights masters(*net);
    const torch::Tensor bias = net->parameters()[1];
    {
      const torch::NoGradGuard no_grad;
      bias.fill_(1);
    }
    masters.reload();
    torch::optim::SGD optimizer(masters.parameters(), 1e-3);
    EXPECT_TRUE(masters.parameters()[2].is_same(net->parameters()[2]));
    for (int step = 0; step < 100; ++step) {
      net->zero_grad();
      ddp->is_training();
      net[0]->as<torch::nn::Linear>()->forward(random_input({2, 4}, step).to(torch::kBFloat16)).sum().backward();
      masters.step(optimizer);
    }
    EXPECT_NEAR(bias[0].item<double>(), 0.8, 0.01);
    EXPECT_NEAR(masters.tensors().at("0.bias")[0].item<double>(), 0.8, 1e-4);
    MasterWeights resumed(*net);
    resumed.load(masters.tensors());
    EXPECT_TRUE(torch::equal(resumed.parameters()[1], masters.parameters()[1]));
    expect_in(error_of([&] { resumed.load({}); }), {"'0.weight' is missing"});
    expect_equal_on_all_ranks(masters.parameters(), "master");
  });
}

}  // namespace
}  // namespace lockstep::test
