#include <gtest/gtest.h>

#include <functional>

#include "lockstep/checkpoint/checkpoint.h"
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

struct Parts {
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
    Parts whole;
    auto scheduler = make(whole.optimizer);
    for (int i = 0; i < stop; ++i) step(scheduler, i);
    Checkpoint saved;
    saved.add_optimizer(whole.optimizer);
    saved.add_scheduler(scheduler);
    saved.save(folder.path() / "state");

    Parts resumed;
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

TEST(SchedulerCheckpoints, AnotherSchedulerIsNamed) {
  Parts parts;
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
  Parts parts;
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
