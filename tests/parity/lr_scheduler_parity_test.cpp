// Schedulers beside PyTorch's over 100 steps and three parameter groups, bit for bit; and states both ways.
// lr_scheduler.py has the same cases.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/nn/lr_schedules.h"
#include "lockstep/nn/one_cycle_lr.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep::optim {
namespace {

using Dict = c10::impl::GenericDict;
using torch::optim::Optimizer;
using Scheduler = std::shared_ptr<LRScheduler>;
using Part = std::function<Scheduler(Optimizer&)>;

constexpr int kScheduledSteps = 100;
constexpr int kStop = 37;
const std::vector<double> kRates = {0.1, 0.03, 1e-4};

template <typename Class, typename... Arguments>
Part make(Arguments... arguments) {
  return [=](Optimizer& optimizer) { return std::make_shared<Class>(optimizer, arguments...); };
}

Part sequence(std::vector<Part> parts, std::vector<std::int64_t> milestones) {
  return [=](Optimizer& optimizer) {
    std::vector<Scheduler> schedulers;
    for (const Part& part : parts) schedulers.push_back(part(optimizer));
    return std::make_shared<SequentialLR>(optimizer, schedulers, milestones);
  };
}

struct Case {
  std::string name;
  std::string optimizer;
  Part scheduler;
};

std::vector<Case> cases() {
  using Lambda = LambdaLR::Function;
  const std::vector<std::int64_t> milestones = {10, 40, 40, 77};
  const std::vector<std::int64_t> early = {0, 20};
  return {
      {"step", "sgd", make<StepLR>(7, 0.7)},
      {"multi_step", "sgd", make<MultiStepLR>(milestones, 0.3)},
      {"constant", "sgd", make<ConstantLR>(0.4, 12)},
      {"linear", "sgd", make<LinearLR>(LinearLROptions{0.05, 0.9, 60})},
      {"exponential", "sgd", make<ExponentialLR>(0.97)},
      {"polynomial", "sgd", make<PolynomialLR>(60, 1.7)},
      {"cosine", "sgd", make<CosineAnnealingLR>(30, 1e-3)},
      {"lambda", "sgd", make<LambdaLR>(Lambda([](std::int64_t e) { return 1 / (1 + static_cast<double>(e)); }))},
      {"one_cycle", "sgd", make<OneCycleLR>(OneCycleLROptions{.max_lr = {0.4, 0.2, 0.1}, .total_steps = 100})},
      {"one_cycle_linear", "adam",
       make<OneCycleLR>(OneCycleLROptions{.max_lr = {0.4},
                                          .total_steps = 120,
                                          .pct_start = 0.21,
                                          .anneal_strategy = AnnealStrategy::kLinear,
                                          .base_momentum = {0.8},
                                          .three_phase = true})},
      {"one_cycle_rates", "adamw",
       make<OneCycleLR>(OneCycleLROptions{
           .max_lr = {0.4}, .total_steps = 100, .cycle_momentum = false, .div_factor = 3.0, .final_div_factor = 77.0})},
      {"one_cycle_rmsprop", "rmsprop",
       make<OneCycleLR>(OneCycleLROptions{.max_lr = {0.01}, .total_steps = 101, .max_momentum = {0.9, 0.8, 0.7}})},
      {"warmup_cosine", "sgd",
       sequence({make<LinearLR>(LinearLROptions{0.1, 1.0, 10}), make<CosineAnnealingLR>(90)}, {10})},
      {"three", "adam",
       sequence({make<ConstantLR>(0.2, 5), make<ExponentialLR>(0.9), make<StepLR>(10, 0.5)}, {15, 50})},
      {"others", "sgd",
       sequence({make<StepLR>(6, 0.4), make<MultiStepLR>(early, 0.1), make<PolynomialLR>(40, 2.0), make<LinearLR>()},
                {20, 60, 90})},
      {"warmup_one_cycle", "sgd",
       sequence({make<LinearLR>(LinearLROptions{.start_factor = 0.1, .total_iters = 15}),
                 make<OneCycleLR>(OneCycleLROptions{.max_lr = {0.2}, .total_steps = 90})},
                {15})},
      {"lambda_later", "sgd",
       sequence({make<ConstantLR>(0.1, 20),
                 make<LambdaLR>(Lambda([](std::int64_t e) { return 2 / (2 + static_cast<double>(e)); }))},
                {50})},
      {"nested", "sgd",
       sequence(
           {sequence({make<ConstantLR>(0.5, 5), make<ExponentialLR>(0.9)}, {8}), make<CosineAnnealingLR>(40, 1e-5)},
           {30})},
  };
}

template <typename Class, typename Options>
std::unique_ptr<Optimizer> with_groups(const Options& options) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : kRates) {
    // clone() is public in the base class alone.
    const torch::optim::OptimizerOptions& base = options;
    groups.emplace_back(std::vector{torch::zeros({1}, torch::requires_grad())}, base.clone());
    groups.back().options().set_lr(rate);
  }
  return std::make_unique<Class>(groups, options);
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& kind) {
  using namespace torch::optim;
  if (kind == "adam") return with_groups<Adam>(AdamOptions());
  if (kind == "adamw") return with_groups<AdamW>(AdamWOptions());
  if (kind == "rmsprop") return with_groups<RMSprop>(RMSpropOptions());
  return with_groups<SGD>(SGDOptions(0.1).momentum(0.5));
}

double momentum_of(torch::optim::OptimizerOptions& options, const std::string& kind) {
  using namespace torch::optim;
  if (kind == "adam") return std::get<0>(static_cast<AdamOptions&>(options).betas());
  if (kind == "adamw") return std::get<0>(static_cast<AdamWOptions&>(options).betas());
  if (kind == "rmsprop") return static_cast<RMSpropOptions&>(options).momentum();
  return static_cast<SGDOptions&>(options).momentum();
}

struct ScheduledTraining {
  Case what;
  std::unique_ptr<Optimizer> optimizer = make_optimizer(what.optimizer);
  Scheduler scheduler = what.scheduler(*optimizer);

  void step() {
    optimizer->step();
    scheduler->step();
  }

  // The rates, then the momenta.
  std::vector<double> row() const {
    std::vector<double> rates;
    std::vector<double> momenta;
    for (auto& group : optimizer->param_groups()) {
      rates.push_back(group.options().get_lr());
      momenta.push_back(momentum_of(group.options(), what.optimizer));
    }
    EXPECT_EQ(scheduler->get_last_lr(), rates);
    rates.insert(rates.end(), momenta.begin(), momenta.end());
    return rates;
  }
};

std::vector<double> row_of(const torch::Tensor& rows, int number) {
  const torch::Tensor row = rows[number].contiguous();
  return {row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel()};
}

TEST(LRSchedulerParity, RatesMomentaAndStatesArePyTorchs) {
  const test::ScratchFolder folder;
  test::run_python("lr_scheduler.py", {"write", folder.path("python.pt")});
  const Dict python = checkpoint::read_torch_file(folder.path("python.pt")).toGenericDict();
  Dict states(c10::AnyType::get(), c10::AnyType::get());
  for (const Case& what : cases()) {
    SCOPED_TRACE(what.name);
    const Dict expected = python.at(what.name).toGenericDict();
    const torch::Tensor rows = expected.at("rows").toTensor();
    ScheduledTraining run{what};
    EXPECT_EQ(run.row(), row_of(rows, 0));
    for (int number = 1; number <= kScheduledSteps; ++number) {
      run.step();
      ASSERT_EQ(run.row(), row_of(rows, number)) << "after step " << number;
      if (number != kStop) continue;
      // What Python goes on with.
      const c10::IValue optimizer = checkpoint::state_dict(*run.optimizer);
      run.scheduler->add_to_groups(optimizer);
      Dict both(c10::AnyType::get(), c10::AnyType::get());
      both.insert("optimizer", optimizer);
      both.insert("scheduler", run.scheduler->state_dict());
      states.insert(what.name, both);
    }
    // From Python's state after kStop steps.
    ScheduledTraining other{what};
    checkpoint::load_state_dict(*other.optimizer, expected.at("optimizer"));
    other.scheduler->load_state_dict(expected.at("scheduler"));
    for (int number = kStop + 1; number <= kScheduledSteps; ++number) {
      other.step();
      ASSERT_EQ(other.row(), row_of(rows, number)) << "after step " << number << ", from Python's state";
    }
  }
  // Schedules that are stepped one after the other, as PyTorch's ChainedScheduler does.
  ScheduledTraining together{{"together", "sgd", make<ConstantLR>(0.1, 20)}};
  ExponentialLR second(*together.optimizer, 0.98);
  CosineAnnealingLR third(*together.optimizer, 50);
  const torch::Tensor rows = python.at("together").toTensor();
  for (int number = 1; number <= kScheduledSteps; ++number) {
    together.step();
    second.step();
    third.step();
    std::vector<double> rates;
    for (auto& group : together.optimizer->param_groups()) rates.push_back(group.options().get_lr());
    std::vector<double> expected = row_of(rows, number);
    expected.resize(rates.size());  // the momenta follow
    ASSERT_EQ(rates, expected) << "together, after step " << number;
  }
  checkpoint::write_torch_file(folder.path("cpp.pt"), states);
  EXPECT_EQ(test::run_python("lr_scheduler.py", {"go_on", folder.path("cpp.pt")}), "all well\n");
}

}  // namespace
}  // namespace lockstep::optim
