#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "checkpoint/dict.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/nn/lr_schedules.h"
#include "lockstep/nn/one_cycle_lr.h"
#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

namespace optim = torch::optim;
using Plateau = optim::ReduceLROnPlateauScheduler;

// A user's own scheduler: the rate falls more slowly with each step.
class Slowing : public optim::LRScheduler {
 public:
  using LRScheduler::LRScheduler;

 private:
  std::vector<double> get_lrs() override {
    std::vector<double> rates = get_current_lrs();
    for (double& rate : rates) rate *= 1.0 - 0.5 / (1.0 + step_count_);
    return rates;
  }
};

struct ScheduledParts {
  std::vector<torch::Tensor> parameters{torch::ones({2}, torch::requires_grad()),
                                        torch::ones({3}, torch::requires_grad())};
  optim::SGD optimizer{{optim::OptimizerParamGroup({parameters[0]}), optim::OptimizerParamGroup({parameters[1]})},
                       optim::SGDOptions(0.1)};

  std::vector<double> rates() {
    std::vector<double> result;
    for (auto& group : optimizer.param_groups()) result.push_back(group.options().get_lr());
    return result;
  }
};

template <typename Scheduler>
std::string error_of_restoring(const Checkpoint& checkpoint, Scheduler& scheduler) {
  try {
    checkpoint.restore_scheduler(scheduler);
  } catch (const CheckpointError& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  }
  return "no error";
}

// Ten steps without a stop, and with a restore after any number of them: the same rates after each step.
template <typename Make, typename Step>
void expect_same_rates_when_resumed(Make make, Step step) {
  constexpr int kSteps = 10;
  for (int stop = 0; stop < kSteps; ++stop) {
    const test::ScratchFolder folder;
    ScheduledParts whole;
    auto scheduler = make(whole.optimizer);
    for (int i = 0; i < stop; ++i) step(scheduler, i);
    Checkpoint saved;
    saved.add_optimizer(whole.optimizer);
    saved.add_scheduler(scheduler);
    saved.save(folder.path() / "state");

    ScheduledParts resumed;
    auto other = make(resumed.optimizer);
    for (int i = 0; i < 3; ++i) step(other, 5 - i);  // restoring must replace this state
    const Checkpoint loaded = Checkpoint::load(folder.path() / "state");
    loaded.restore_optimizer(resumed.optimizer);
    loaded.restore_scheduler(other);
    for (int i = stop; i < kSteps; ++i) {
      step(scheduler, i);
      step(other, i);
      EXPECT_EQ(whole.rates(), resumed.rates()) << "stopped after " << stop << " steps, at step " << i;
    }
  }
}

// Restoring the state makes no new optimizer of it, which would begin with its present rates.
TEST(SchedulerCheckpoints, TheFirstRatesStayWhereTheOptimizersStateIsRestored) {
  ScheduledParts parts;
  const lockstep::optim::LinearLR warmup(parts.optimizer, {.start_factor = 0.5});
  Checkpoint saved;
  saved.add_optimizer(parts.optimizer);
  saved.restore_optimizer(parts.optimizer);
  EXPECT_EQ(parts.rates(), std::vector<double>(2, 0.05));
  const lockstep::optim::LambdaLR constant(parts.optimizer, [](std::int64_t) { return 1.0; });
  EXPECT_EQ(parts.rates(), std::vector<double>(2, 0.1));
}

TEST(SchedulerCheckpoints, StepLRGoesOn) {
  expect_same_rates_when_resumed([](optim::Optimizer& optimizer) { return optim::StepLR(optimizer, 3, 0.5); },
                                 [](optim::StepLR& scheduler, int) { scheduler.step(); });
}

TEST(SchedulerCheckpoints, OnesOwnGoesOn) {
  expect_same_rates_when_resumed([](optim::Optimizer& optimizer) { return Slowing(optimizer); },
                                 [](Slowing& scheduler, int) { scheduler.step(); });
}

TEST(SchedulerCheckpoints, PlateauGoesOn) {
  const std::vector<float> losses{0.9F, 0.7F, 0.71F, 0.72F, 0.73F, 0.6F, 0.61F, 0.62F, 0.63F, 0.64F};
  expect_same_rates_when_resumed(
      [](optim::Optimizer& optimizer) {
        return Plateau(optimizer, Plateau::min, 0.5F, /*patience=*/1, 1e-4, Plateau::rel, /*cooldown=*/1);
      },
      [&](Plateau& scheduler, int i) { scheduler.step(losses[i]); });
}

TEST(SchedulerCheckpoints, SchedulesOfLockstepGoOn) {
  namespace ours = lockstep::optim;
  const auto one_step = [](auto& scheduler, int) { scheduler.step(); };
  expect_same_rates_when_resumed([](optim::Optimizer& optimizer) { return ours::StepLR(optimizer, 3, 0.5); }, one_step);
  expect_same_rates_when_resumed(
      [](optim::Optimizer& optimizer) {
        return ours::OneCycleLR(optimizer, {.max_lr = {0.5}, .total_steps = 20, .cycle_momentum = false});
      },
      one_step);
  expect_same_rates_when_resumed(
      [](optim::Optimizer& optimizer) {
        auto warmup = std::make_shared<ours::LinearLR>(
            optimizer, ours::LinearLROptions{.start_factor = 0.1, .end_factor = 1.0, .total_iters = 4});
        auto cosine = std::make_shared<ours::CosineAnnealingLR>(optimizer, 8);
        return ours::SequentialLR(optimizer, {warmup, cosine}, {4});
      },
      one_step);
}

// A class with Python's methods, whose state has values of every kind.
struct Counting {
  c10::IValue state_dict() const {
    Dict state = make_dict();
    state.insert("rates", c10::List<double>({0.1, -std::numeric_limits<double>::infinity()}));
    state.insert("pair", c10::ivalue::Tuple::create(std::vector<c10::IValue>{1, c10::IValue()}));
    state.insert("text", "\"quoted\"\n");
    state.insert(7, true);
    state.insert("count", count);
    return state;
  }
  void load_state_dict(const c10::IValue& state) {
    const Dict read = state.toGenericDict();
    EXPECT_EQ(read.at("rates").toListRef()[0].toDouble(), 0.1);
    EXPECT_EQ(read.at("rates").toListRef()[1].toDouble(), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(read.at("pair").toTupleRef().elements()[0].toInt(), 1);
    EXPECT_TRUE(read.at("pair").toTupleRef().elements()[1].isNone());
    EXPECT_EQ(read.at("text").toStringRef(), "\"quoted\"\n");
    EXPECT_TRUE(read.at(7).toBool());
    count = read.at("count").toInt();
  }
  std::int64_t count = 0;
};

TEST(SchedulerCheckpoints, HoldThoseWithAStateDict) {
  const test::ScratchFolder folder;
  Checkpoint saved;
  saved.add_scheduler(Counting{5});
  saved.set_value("own", Counting{6}.state_dict());
  test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {"value \"bad\"", "Tensor"},
                                      [&] { saved.set_value("bad", torch::ones({1})); });
  saved.save(folder.path() / "state");
  const Checkpoint loaded = Checkpoint::load(folder.path() / "state");
  Counting scheduler;
  loaded.restore_scheduler(scheduler);
  EXPECT_EQ(scheduler.count, 5);
  scheduler.load_state_dict(loaded.get_value("own"));
  EXPECT_EQ(scheduler.count, 6);
  ScheduledParts parts;
  optim::StepLR other(parts.optimizer, 3);
  EXPECT_NE(error_of_restoring(loaded, other).find("Counting"), std::string::npos);
}

// Integers that make the table of each dict a part of what one file may take; all tables together are more.
TEST(SchedulerCheckpoints, DictsWhoseTablesTogetherTakeAllMemoryAreRefused) {
  constexpr std::uint64_t kFactor = 11400714819323198485U;  // of LibTorch's tables
  std::uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  ASSERT_EQ(inverse * kFactor, 1U);
  std::string pairs;
  for (std::uint64_t i = 1; i <= 40; ++i) {
    const auto key = static_cast<std::int64_t>((i << 42) * inverse);
    pairs += (i == 1 ? "[" : ",[") + std::to_string(key) + ",null]";
  }
  std::string dicts;
  for (int i = 0; i < 20; ++i) dicts += (i == 0 ? "" : ",") + ("{\"dict\":[" + pairs + "]}");
  const test::ScratchFolder folder;
  TensorFile file;
  file.metadata = {{"value.many", "[" + dicts + "]"}, {"type.many", "value"}};
  write_tensor_file(folder.path() / "state", file);
  const Checkpoint state = Checkpoint::load(folder.path() / "state");
  test::expect_error<CheckpointError>(ErrorCode::kCorrupt, {"value \"many\"", "keys of its dicts"},
                                      [&] { state.get_value("many"); });
}

TEST(SchedulerCheckpoints, AnotherSchedulerIsNamed) {
  ScheduledParts parts;
  optim::StepLR step(parts.optimizer, 3);
  Plateau plateau(parts.optimizer);
  Checkpoint state;
  EXPECT_NE(error_of_restoring(state, step).find("mismatch: this checkpoint: it holds no scheduler"), std::string::npos)
      << error_of_restoring(state, step);
  state.add_scheduler(step);
  const std::string error = error_of_restoring(state, plateau);
  EXPECT_NE(error.find("StepLR"), std::string::npos) << error;
  EXPECT_NE(error.find("ReduceLROnPlateauScheduler"), std::string::npos) << error;
}

TEST(SchedulerCheckpoints, AMetricThatIsNoNumberIsRefused) {
  const test::ScratchFolder folder;
  ScheduledParts parts;
  Plateau plateau(parts.optimizer);
  Checkpoint state;
  state.add_scheduler(plateau);
  state.save(folder.path() / "state");
  for (const char* value : {"nan", "1e300"}) {
    TensorFile file = read_tensor_file(folder.path() / "state");
    file.metadata["scheduler.best"] = value;
    write_tensor_file(folder.path() / "bad", file);
    const std::string error = error_of_restoring(Checkpoint::load(folder.path() / "bad"), plateau);
    EXPECT_NE(error.find("scheduler.best"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
