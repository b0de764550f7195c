// The Trainer stopped by signals and stop(), on all ranks at the same step, and how it goes on.
#include <gtest/gtest.h>

#include <csignal>

#include "lockstep/trainer/trainer.h"
#include "small_training.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class TrainerStopMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TrainerStopMulti, testing::Values(1, 2, 3, 5));

// All was done, so there is nothing to resume.
TEST_P(TrainerStopMulti, IsFinishedIfItIsAskedToStopAfterItsLastStep) {
  run_processes(GetParam(), [](int) {
    const ProcessGroupGuard group;
    for (const bool evaluates : {true, false}) {
      Trainer* trainer = nullptr;
      const std::int64_t batches = (60 / get_world_size() + 3) / 4;
      TrainerOptions options{.epochs = 2};
      options.callbacks.on_evaluation = [&](const Evaluation& found) {
        if (found.epoch == 1) trainer->stop();
      };
      options.callbacks.on_step_end = [&](const StepReport& step) {
        if (!evaluates && step.step == 2 * batches) trainer->stop();
      };
      Training training(options);
      trainer = &training.trainer;
      const auto step = [&](data::Example& batch) { return training.output_of(batch); };
      const TrainingResult result = evaluates ? training.fit() : trainer->fit(training.train, step);
      EXPECT_EQ(result.end, TrainingEnd::kFinished) << evaluates;
      EXPECT_EQ(result.steps, 2 * batches);
    }
  });
}

// Stopped by a signal to one rank or by stop() on one: all ranks stop after the next step, and at the last step of an
// epoch there. A rank without others stops at once. The resumed training has the bits of one that was not stopped.
TEST_P(TrainerStopMulti, IsInterruptedAndResumesWithTheSameBits) {
  const SharedScratchFolder folder;
  const std::int64_t batches = (60 / GetParam() + 3) / 4;
  run_processes(GetParam(), [&](int rank) {
    const ProcessGroupGuard group;
    const auto options = [&](const char* name) {
      return TrainerOptions{.epochs = 3, .ema_decay = 0.9, .checkpoint_dir = folder.path(name)};
    };
    Training whole(options("whole"));
    const TrainingResult expected = whole.fit();
    for (const std::int64_t last : {std::int64_t{1}, batches + 2, 2 * batches}) {
      TrainerOptions stopped = options(std::to_string(last).c_str());
      const int asked = (GetParam() - 1) / 2;
      Trainer* trainer = nullptr;
      stopped.callbacks.on_step_end = [&](const StepReport& step) {
        if (step.step != last || rank != asked) return;
        last == 1 ? static_cast<void>(::raise(SIGTERM)) : trainer->stop();
      };
      Training first(stopped);
      trainer = &first.trainer;
      const TrainingResult result = first.fit();
      EXPECT_EQ(result.end, TrainingEnd::kInterrupted);
      EXPECT_EQ(result.signal, last == 1 ? SIGTERM : 0);
      EXPECT_EQ(result.steps, GetParam() > 1 && last % batches != 0 ? last + 1 : last);
      TrainerOptions resumed = options(std::to_string(last).c_str());
      resumed.resume = true;
      Training second(resumed);
      const TrainingResult end = second.fit();
      EXPECT_EQ(end.steps, expected.steps);
      EXPECT_EQ(end.best_metric, expected.best_metric);
      EXPECT_DOUBLE_EQ(end.loss, expected.loss);
      EXPECT_EQ(end.evaluation->loss, expected.evaluation->loss);
      expect_same_values(*second.net, *whole.net, "stopped at " + std::to_string(last));
    }
  });
}

// The signal comes in the step that the stop() of another rank still lets through.
TEST(TrainerSignalMulti, IsToldThoughItComesAfterAStop) {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard group;
    Trainer* trainer = nullptr;
    TrainerOptions options{.epochs = 2};
    options.callbacks.on_step_end = [&](const StepReport& step) {
      if (step.step == 2 && rank == 0) trainer->stop();
      if (step.step == 3 && rank == 2) ::raise(SIGTERM);
    };
    Training training(options);
    trainer = &training.trainer;
    const TrainingResult result = training.fit();
    EXPECT_EQ(result.steps, 3);
    EXPECT_EQ(result.signal, SIGTERM);
  });
}

// Each fit() of the same Trainer is stopped by other ranks, at each place within an epoch.
TEST_P(TrainerStopMulti, StopsAtTheSameStepOnAllRanksWhoeverIsAsked) {
  run_processes(GetParam(), [](int rank) {
    const ProcessGroupGuard group;
    const int world = get_world_size();
    const std::int64_t batches = (60 / world + 3) / 4;
    std::int64_t last = 0;
    bool asked = false;
    Trainer* trainer = nullptr;
    TrainerOptions options{.epochs = 1000};
    options.callbacks.on_step_end = [&](const StepReport& step) {
      if (step.step == last && asked) trainer->stop();
    };
    Training training(options);
    trainer = &training.trainer;
    const auto step = [&](data::Example& batch) { return training.output_of(batch); };
    const auto stopped = [&](bool mine, bool all) {
      asked = mine;
      ++last;
      const bool now = all || last % batches == 0;
      EXPECT_EQ(trainer->fit(training.train, step).steps, now ? last : last + 1)
          << world << " ranks, asked at " << last;
      if (!now) ++last;
    };
    for (std::int64_t i = 0; i < 2 * batches; ++i) {
      stopped(rank == 0, world == 1);
      stopped(rank == world - 1, world == 1);
      stopped(true, true);
      if (world > 1) stopped(rank > 0, false);
    }
  });
}

TEST_P(TrainerStopMulti, GoesOnWhereItWasStopped) {
  run_processes(GetParam(), [](int) {
    const ProcessGroupGuard group;
    Training whole({.epochs = 2});
    const TrainingResult expected = whole.fit();
    TrainerOptions options{.epochs = 2};
    Trainer* trainer = nullptr;
    options.callbacks.on_step_end = [&](const StepReport& step) {
      if (step.step == 2) trainer->stop();
    };
    Training training(options);
    trainer = &training.trainer;
    EXPECT_EQ(training.fit().end, TrainingEnd::kInterrupted);
    // The loader keeps its place, also when the program looks at its samples meanwhile.
    const Evaluation looked =
        training.trainer.evaluate(training.train, [&](data::Example& batch) { return training.output_of(batch); });
    EXPECT_EQ(looked.samples, 60);
    const TrainingResult end = training.fit();
    EXPECT_EQ(end.steps, expected.steps);
    EXPECT_DOUBLE_EQ(end.loss, expected.loss);
    expect_same_values(*training.net, *whole.net, "stopped and continued");
  });
}

}  // namespace
}  // namespace lockstep::test
