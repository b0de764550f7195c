// Wrong arguments and wrong states of schedulers. Their rates: tests/parity/lr_scheduler_parity_test.cpp.
#include "lockstep/nn/lr_scheduler.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/nn/lr_schedules.h"
#include "lockstep/nn/one_cycle_lr.h"
#include "nn/error_texts.h"

namespace lockstep::optim {
namespace {

using test::error_of;
using test::expect_in;
using Dict = c10::impl::GenericDict;
using Schedulers = std::vector<std::shared_ptr<LRScheduler>>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class LRSchedulerTest : public testing::Test {
 protected:
  std::vector<double> rates() {
    std::vector<double> result;
    for (auto& group : optimizer.param_groups()) result.push_back(group.options().get_lr());
    return result;
  }
  template <typename Class, typename... Arguments>
  std::string error(const Arguments&... arguments) {
    return error_of([&] { Class(optimizer, arguments...); });
  }

  torch::optim::SGD optimizer{std::vector{torch::zeros({1}, torch::requires_grad())}, torch::optim::SGDOptions(0.1)};
};

TEST_F(LRSchedulerTest, WrongArgumentsAreNamed) {
  expect_in(error<StepLR>(0), {"StepLR", "step_size", "found 0"});
  expect_in(error<StepLR>(3, kNan), {"StepLR", "gamma", "nan"});
  expect_in(error<MultiStepLR>(std::vector<std::int64_t>{3}, kNan), {"MultiStepLR", "gamma"});
  expect_in(error<ConstantLR>(0.0, 3), {"ConstantLR", "factor", "0"});
  expect_in(error<ConstantLR>(0.5, 0), {"ConstantLR", "total_iters"});
  expect_in(error<LinearLR>(LinearLROptions{.start_factor = 0}), {"LinearLR", "start_factor", "0"});
  expect_in(error<LinearLR>(LinearLROptions{.end_factor = 1.5}), {"LinearLR", "end_factor", "1.5"});
  expect_in(error<LinearLR>(LinearLROptions{.total_iters = 0}), {"LinearLR", "total_iters", "0"});
  expect_in(error<ExponentialLR>(kNan), {"ExponentialLR", "gamma"});
  expect_in(error<PolynomialLR>(5, 0.0), {"PolynomialLR", "power"});
  expect_in(error<CosineAnnealingLR>(0), {"CosineAnnealingLR", "t_max"});
  expect_in(error<LambdaLR>(std::vector<LambdaLR::Function>(2)), {"LambdaLR", "each of 1", "found 2"});
  expect_in(error<LambdaLR>(LambdaLR::Function()), {"LambdaLR", "empty"});
  EXPECT_EQ(rates(), std::vector{0.1}) << "no rate was changed";
}

TEST_F(LRSchedulerTest, WrongArgumentsOfOneCycleAreNamed) {
  using Options = OneCycleLROptions;
  expect_in(error<OneCycleLR>(Options{.max_lr = {0.1}}), {"total_steps", "0"});
  expect_in(error<OneCycleLR>(Options{.total_steps = 5}), {"one max_lr", "found 0"});
  expect_in(error<OneCycleLR>(Options{.max_lr = {0.1, 0.2}, .total_steps = 5}), {"max_lr", "1 parameter", "found 2"});
  expect_in(error<OneCycleLR>(Options{.max_lr = {0.1}, .total_steps = 5, .pct_start = 2}), {"pct_start", "2"});
  expect_in(error<OneCycleLR>(Options{.max_lr = {0.1}, .total_steps = 5, .div_factor = 0}), {"div_factor", "0"});
  // Python divides by zero.
  expect_in(error<OneCycleLR>(Options{.max_lr = {0.1}, .total_steps = 10, .pct_start = 0.1}),
            {"no length", "pct_start"});
  torch::optim::Adagrad adagrad({torch::zeros({1}, torch::requires_grad())});
  expect_in(error_of([&] { OneCycleLR(adagrad, {.max_lr = {0.1}, .total_steps = 5}); }), {"cycle_momentum"});
  OneCycleLR scheduler(optimizer, {.max_lr = {0.1}, .total_steps = 3});
  for (int step = 0; step < 3; ++step) scheduler.step();
  const auto last = rates();
  expect_in(error_of([&] { scheduler.step(); }), {"step 4", "total_steps", "3"});
  EXPECT_EQ(rates(), last);
}

TEST_F(LRSchedulerTest, WrongCombinationsAreNamed) {
  torch::optim::SGD other({torch::zeros({1})}, 0.1);
  const auto step = std::make_shared<StepLR>(optimizer, 3);
  const auto of_other = std::make_shared<StepLR>(other, 3);
  const auto inner = std::make_shared<SequentialLR>(optimizer, Schedulers{step}, std::vector<std::int64_t>{});
  const auto sequence = [&](const Schedulers& parts, const std::vector<std::int64_t>& milestones) {
    return error<SequentialLR>(parts, milestones);
  };
  expect_in(sequence({}, {}), {"SequentialLR", "at least one"});
  expect_in(sequence({step, nullptr}, {3}), {"scheduler 1 is null"});
  expect_in(sequence({step, of_other}, {3}), {"scheduler 1, a StepLR, is of another optimizer"});
  expect_in(sequence({step, step}, {}), {"1 milestones for 2 schedulers", "found 0"});
  expect_in(sequence({step, step, step}, {5, 3}), {"ascend", "[5, 3]"});
  expect_in(sequence({step, step}, {-1}), {"ascend", "[-1]"});
  expect_in(sequence({step, inner}, {3}), {"only the first", "SequentialLR as scheduler 1"});
}

TEST_F(LRSchedulerTest, SchedulersOfOneOptimizerShareTheFirstRates) {
  {
    LinearLR warmup(optimizer, {.start_factor = 0.5});
    EXPECT_EQ(rates(), std::vector{0.05});
    LambdaLR constant(optimizer, [](std::int64_t) { return 1.0; });
    EXPECT_EQ(rates(), std::vector{0.1}) << "not 0.05";
    optimizer.param_groups()[0].options().set_lr(0.3);
  }
  // They are gone: the present rate is a first one again.
  LambdaLR constant(optimizer, [](std::int64_t) { return 1.0; });
  EXPECT_EQ(rates(), std::vector{0.3});
}

// The former schedule lives while the new one is made, and the new optimizer has the address of the former one.
TEST_F(LRSchedulerTest, ANewOptimizerInTheSamePlaceHasItsOwnFirstRates) {
  const std::vector parameters{torch::zeros({1}, torch::requires_grad())};
  const auto constant = [](std::int64_t) { return 1.0; };
  std::optional<torch::optim::SGD> in_place;
  std::shared_ptr<LRScheduler> former, scheduler;
  for (const double rate : {0.1, 0.5, 0.5, 0.2}) {
    in_place.emplace(parameters, torch::optim::SGDOptions(rate));
    former = scheduler;
    scheduler = std::make_shared<LambdaLR>(*in_place, constant);
    const LinearLR second(*in_place, {.start_factor = 0.5});
    EXPECT_EQ(second.get_last_lr(), std::vector{rate * 0.5});
    EXPECT_EQ(scheduler->get_last_lr(), std::vector{rate});
    if (former) {
      expect_in(error_of([&] { SequentialLR(*in_place, {scheduler, former}, {3}); }), {"scheduler 1", "another"});
    }
  }
}

// Python's groups get initial_lr with the optimizer's state. A OneCycleLR has replaced it there, in the middle.
TEST_F(LRSchedulerTest, LoadingAStateBringsTheFirstRates) {
  using Options = OneCycleLROptions;
  for (const bool cycle_first : {false, true}) {
    torch::optim::SGD saved({torch::zeros({1}, torch::requires_grad())}, 0.3);
    const LinearLR saved_warmup(saved, {.start_factor = 0.5});
    const OneCycleLR saved_cycle(saved, {.max_lr = {0.5}, .total_steps = 9});
    torch::optim::SGD loaded({torch::zeros({1}, torch::requires_grad())}, 0.1);
    LinearLR warmup(loaded, {.start_factor = 0.5});
    OneCycleLR cycle(loaded, Options{.max_lr = {0.2}, .total_steps = 9, .div_factor = 2});
    if (cycle_first) cycle.load_state_dict(saved_cycle.state_dict());
    warmup.load_state_dict(saved_warmup.state_dict());
    const LambdaLR between(loaded, [](std::int64_t) { return 1.0; });
    EXPECT_EQ(between.get_last_lr(), std::vector{cycle_first ? 0.02 : 0.1});
    cycle.load_state_dict(saved_cycle.state_dict());
    const LambdaLR after(loaded, [](std::int64_t) { return 1.0; });
    EXPECT_EQ(after.get_last_lr(), std::vector{0.02});
    EXPECT_NE(error_of([&] { warmup.load_state_dict(saved_cycle.state_dict()); }), "no error");
    const LambdaLR last(loaded, [](std::int64_t) { return 1.0; });
    EXPECT_EQ(last.get_last_lr(), std::vector{0.02});
  }
}

TEST_F(LRSchedulerTest, LengthsAreThoseOfAllParts) {
  using Lengths = std::vector<std::int64_t>;
  EXPECT_EQ(StepLR(optimizer, 3).lengths(), Lengths{});
  EXPECT_EQ(ConstantLR(optimizer, 0.5, 4).lengths(), Lengths{4});
  EXPECT_EQ(LinearLR(optimizer, {.total_iters = 2}).lengths(), Lengths{2});
  EXPECT_EQ(PolynomialLR(optimizer, 9).lengths(), Lengths{9});
  EXPECT_EQ(OneCycleLR(optimizer, {.max_lr = {0.1}, .total_steps = 5}).lengths(), Lengths{5});
  const auto make = [&](std::int64_t t_max) {
    return SequentialLR(optimizer,
                        Schedulers{std::make_shared<LinearLR>(optimizer, LinearLROptions{.total_iters = 2}),
                                   std::make_shared<CosineAnnealingLR>(optimizer, t_max)},
                        {2});
  };
  SequentialLR scheduler = make(7);
  EXPECT_EQ(scheduler.lengths(), (Lengths{2, 7}));
  scheduler.load_state_dict(make(8).state_dict());
  EXPECT_EQ(scheduler.lengths(), (Lengths{2, 8}));
}

TEST_F(LRSchedulerTest, OneCycleHasItsOwnRatesAsAPartToo) {
  const auto cycle = std::make_shared<OneCycleLR>(optimizer, OneCycleLROptions{.max_lr = {0.1}, .total_steps = 5});
  EXPECT_TRUE(cycle->has_own_rates());
  EXPECT_TRUE(SequentialLR(optimizer, {cycle}, {}).has_own_rates());
  EXPECT_FALSE(StepLR(optimizer, 3).has_own_rates());
}

TEST_F(LRSchedulerTest, AGroupThatCameLaterIsNamed) {
  StepLR scheduler(optimizer, 3);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({1})}));
  expect_in(error_of([&] { scheduler.step(); }), {"StepLR", "2 parameter groups", "had 1", "add_param_group"});
  EXPECT_EQ(scheduler.last_epoch(), 0);
}

TEST_F(LRSchedulerTest, WrongStatesAreNamedAndChangeNothing) {
  StepLR scheduler(optimizer, 3, 0.5);
  scheduler.step();
  const auto with = [&](const char* key, const c10::IValue& value) {
    const Dict state = scheduler.state_dict().toGenericDict();
    Dict changed(c10::AnyType::get(), c10::AnyType::get());
    for (const auto& entry : state)
      changed.insert(entry.key(), entry.key() == c10::IValue(key) ? value : entry.value());
    return error_of([&] { scheduler.load_state_dict(changed); });
  };
  const auto list = [](const std::vector<double>& values) { return c10::IValue(c10::List<double>(values)); };
  expect_in(error_of([&] { scheduler.load_state_dict(3); }), {"StepLR", "no dict", "Int"});
  expect_in(error_of([&] { scheduler.load_state_dict(Dict(c10::AnyType::get(), c10::AnyType::get())); }),
            {"StepLR", "no \"_last_lr\""});
  expect_in(error_of([&] { scheduler.load_state_dict(ExponentialLR(optimizer, 1.0).state_dict()); }), {"step_size"});
  expect_in(with("step_size", 0), {"step_size must be at least 1"});
  expect_in(with("step_size", 1.5), {"\"step_size\"", "whole number", "1.5"});
  expect_in(with("step_size", 1e300), {"\"step_size\"", "whole number"});
  expect_in(with("gamma", kNan), {"\"gamma\"", "finite number", "nan"});
  expect_in(with("gamma", std::string("much")), {"\"gamma\"", "String"});
  expect_in(with("base_lrs", list({0.1, 0.2})), {"2 rates as \"base_lrs\"", "1 parameter groups"});
  expect_in(with("base_lrs", 0.1), {"\"base_lrs\"", "a list"});
  expect_in(with("last_epoch", std::string("")), {"\"last_epoch\"", "whole number"});
  EXPECT_EQ(with("verbose", true), "no error");
  // These classes have no key that the others lack.
  ExponentialLR exponential(optimizer, 1.0);
  expect_in(error_of([&] { exponential.load_state_dict(scheduler.state_dict()); }),
            {"ExponentialLR", "\"step_size\"", "another class"});
  expect_in(error_of([&] { exponential.load_state_dict(MultiStepLR(optimizer, {90}, 0.5).state_dict()); }),
            {"\"milestones\""});
  EXPECT_EQ(exponential.state_dict().toGenericDict().at("gamma"), c10::IValue(1.0));
  // Three more steps are as if nothing had happened.
  for (int step = 0; step < 2; ++step) scheduler.step();
  EXPECT_EQ(rates(), std::vector{0.05});
}

TEST_F(LRSchedulerTest, APartOfASequenceThatCannotLoadChangesNothing) {
  const auto make = [&](std::int64_t step_size) {
    return std::make_shared<SequentialLR>(
        optimizer,
        Schedulers{std::make_shared<StepLR>(optimizer, step_size), std::make_shared<ExponentialLR>(optimizer, 0.5)},
        std::vector<std::int64_t>{4});
  };
  const auto scheduler = make(2);
  const auto saved = make(3)->state_dict();
  Dict broken = saved.toGenericDict().at("_schedulers").toListRef()[1].toGenericDict();
  broken.insert_or_assign("gamma", std::string("?"));
  expect_in(error_of([&] { scheduler->load_state_dict(saved); }), {"ExponentialLR", "gamma"});
  EXPECT_EQ(scheduler->state_dict().toGenericDict().at("_schedulers").toListRef()[0].toGenericDict().at("step_size"),
            c10::IValue(2));
  expect_in(error_of([&] { scheduler->load_state_dict(StepLR(optimizer, 3).state_dict()); }), {"_schedulers"});
}

}  // namespace
}  // namespace lockstep::optim
