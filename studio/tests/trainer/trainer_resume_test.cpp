// The Trainer's checkpoints: trainings that go on, with other ranks, lengths and rates, and those that start from the
// beginning.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/nn/lr_schedules.h"
#include "lockstep/nn/one_cycle_lr.h"
#include "lockstep/trainer/trainer.h"
#include "nn/error_texts.h"
#include "small_training.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

TEST(TrainerResumeMulti, GoesOnInMidEpochWithAnotherNumberOfRanks) {
  const SharedScratchFolder folder;
  run_processes(2, [&](int) {
    const ProcessGroupGuard group;
    TrainerOptions options{.epochs = 2, .checkpoint_dir = folder.path(), .checkpoint_every_steps = 3};
    Trainer* trainer = nullptr;
    options.callbacks.on_step_end = [&](const StepReport& step) {
      if (step.step == 3) trainer->stop();
    };
    Training training(options);
    trainer = &training.trainer;
    EXPECT_EQ(training.fit().steps, 3);  // 24 of 60 samples
  });
  run_processes(3, [&](int) {
    const ProcessGroupGuard group;
    std::vector<EpochReport> epochs;
    TrainerOptions options{.epochs = 2, .checkpoint_dir = folder.path(), .resume = true};
    options.callbacks.on_epoch_end = [&](const EpochReport& epoch) { epochs.push_back(epoch); };
    Training training(options);
    EXPECT_EQ(training.fit().end, TrainingEnd::kFinished);
    ASSERT_EQ(epochs.size(), 2U);
    EXPECT_EQ(epochs[0].samples, 36);
    EXPECT_EQ(epochs[0].step, 6);
    EXPECT_EQ(epochs[1].samples, 60);
    // Finished: a third start has nothing to do.
    Training again(options);
    EXPECT_EQ(again.fit().steps, 11);
    EXPECT_EQ(epochs.size(), 2U);
    expect_same_values(*again.net, *training.net, "resumed at the end");
  });
}

// The checkpoints of an earlier training have higher steps. Who resumes gets the later training.
TEST(TrainerUnit, StartsAgainInTheFolderOfAnEarlierTraining) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  const std::string checkpoints = folder.path("checkpoints");
  Training earlier({.epochs = 2, .checkpoint_dir = checkpoints});
  earlier.fit();
  {
    Trainer* trainer = nullptr;
    TrainerOptions options{.epochs = 2, .checkpoint_dir = checkpoints};
    options.callbacks.on_step_end = [&](const StepReport& step) {
      if (step.step == 3) trainer->stop();
    };
    Training other(options);
    trainer = &other.trainer;
    EXPECT_EQ(other.fit().steps, 3);
    EXPECT_FALSE(other.trainer.load_best());  // it has made no evaluation
  }
  const auto saved = [&](const std::string& name) {
    const std::filesystem::directory_iterator files(checkpoints + "/" + name);
    return std::distance(begin(files), end(files));
  };
  const auto first = saved("earlier-1");
  EXPECT_GT(first, 0);
  TrainerOptions options{.epochs = 2, .checkpoint_dir = checkpoints, .resume = true};
  std::int64_t steps = 0;
  options.callbacks.on_step_end = [&](const StepReport&) { ++steps; };
  Training resumed(options);
  EXPECT_EQ(resumed.fit().steps, 30);
  EXPECT_EQ(steps, 27);
  // A third one that starts from the beginning removes neither.
  Training third({.epochs = 1, .checkpoint_dir = checkpoints});
  third.fit();
  EXPECT_EQ(saved("earlier-1"), first);
  EXPECT_GT(saved("earlier-2"), 0);
}

// Someone has forgotten `resume`, and the first batch fails. Nothing is lost: the next start resumes.
TEST(TrainerUnit, AFailureBeforeTheFirstSaveLeavesTheEarlierCheckpoints) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  TrainerOptions options{.epochs = 2, .checkpoint_dir = folder.path()};
  Training(options).fit();
  {
    Training forgotten(options);
    const auto step = [](data::Example& /*batch*/) -> StepOutput { throw std::runtime_error("the first batch fails"); };
    EXPECT_THROW(forgotten.trainer.fit(forgotten.train, forgotten.test, step), std::runtime_error);
    EXPECT_FALSE(forgotten.trainer.load_best());  // the one in the folder is not of this training
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path("earlier-1")));
  std::int64_t steps = 0;
  options.resume = true;
  options.callbacks.on_step_end = [&](const StepReport&) { ++steps; };
  Training resumed(options);
  EXPECT_EQ(resumed.fit().steps, 30);
  EXPECT_EQ(steps, 0);
  EXPECT_TRUE(resumed.trainer.load_best());
}

// The rates and momenta of all steps.
struct Rates {
  std::vector<std::pair<double, double>> values;
  void train(std::int64_t epochs, const std::string& folder, bool resume, const char* schedule, double rate = 0.05) {
    TrainerOptions options{.epochs = epochs, .checkpoint_dir = folder, .resume = resume};
    Net net = make_net();
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    data::DataLoader loader(Sines(20), {.batch_size = 4, .shuffle = true, .seed = 3});
    const std::int64_t steps = epochs * loader.size();
    if (schedule == std::string("one cycle")) {
      options.scheduler_interval = TrainerOptions::Interval::kStep;
      options.scheduler = std::make_shared<optim::OneCycleLR>(
          optimizer, optim::OneCycleLROptions{.max_lr = {rate}, .total_steps = steps});
    } else if (schedule == std::string("warm-up, one cycle")) {
      options.scheduler_interval = TrainerOptions::Interval::kStep;
      const auto warmup = std::make_shared<optim::LinearLR>(optimizer, optim::LinearLROptions{.total_iters = 5});
      const auto cycle = std::make_shared<optim::OneCycleLR>(
          optimizer, optim::OneCycleLROptions{.max_lr = {rate}, .total_steps = steps - 5});
      options.scheduler = std::make_shared<optim::SequentialLR>(
          optimizer, std::vector<std::shared_ptr<optim::LRScheduler>>{warmup, cycle}, std::vector<std::int64_t>{5});
    } else {
      const auto warmup = std::make_shared<optim::LinearLR>(optimizer, optim::LinearLROptions{.total_iters = 1});
      const auto cosine = std::make_shared<optim::CosineAnnealingLR>(optimizer, epochs - 1);
      options.scheduler = std::make_shared<optim::SequentialLR>(
          optimizer, std::vector<std::shared_ptr<optim::LRScheduler>>{warmup, cosine}, std::vector<std::int64_t>{1});
    }
    options.callbacks.on_step_end = [&](const StepReport& step) {
      const auto& sgd = static_cast<const torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
      values.emplace_back(step.learning_rate, sgd.momentum());
    };
    Trainer trainer(net, optimizer, options);
    trainer.fit(loader, [&](data::Example& batch) {
      return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
    });
  }
};

// Resumed after 3 epochs for more of them, and for none.
TEST(TrainerUnit, FollowsTheNewLengthOfASchedule) {
  const ProcessGroupGuard group;
  for (const char* schedule : {"one cycle", "cosine"}) {
    for (const std::int64_t epochs : {6, 4, 3}) {
      const ScratchFolder folder;
      Rates whole;
      whole.train(epochs, "", false, schedule);
      Rates resumed;
      resumed.train(3, folder.path(), false, schedule);
      const std::size_t done = resumed.values.size();
      resumed.train(epochs, folder.path(), true, schedule);
      ASSERT_EQ(resumed.values.size(), whole.values.size());
      for (std::size_t i = done; i < whole.values.size(); ++i) EXPECT_EQ(resumed.values[i], whole.values[i]) << i;
    }
  }
}

// Its peak is in no checkpoint. So all rates are the program's.
TEST(TrainerUnit, FollowsTheNewRateOfOneCycle) {
  const ProcessGroupGuard group;
  for (const char* schedule : {"one cycle", "warm-up, one cycle"}) {
    const ScratchFolder folder;
    Rates whole;
    whole.train(3, "", false, schedule, 0.1);
    Rates first;
    first.train(3, folder.path(), false, schedule);
    ASSERT_TRUE(std::filesystem::remove(folder.path("step-000000015.ckpt")));
    Rates resumed;
    resumed.train(3, folder.path(), true, schedule, 0.1);
    ASSERT_EQ(resumed.values.size(), 5U);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(resumed.values[i], whole.values[10 + i]) << schedule << ", " << i;
  }
}

// What the accuracy was says nothing of the loss.
TEST(TrainerUnit, JudgesAgainWhatIsMonitoredOtherwise) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  std::vector<double> losses;  // since the loss is monitored
  const auto train = [&](std::int64_t epochs, Monitor monitor) {
    TrainerOptions options{.epochs = epochs, .monitor = monitor, .checkpoint_dir = folder.path(), .resume = true};
    options.callbacks.on_evaluation = [&](const Evaluation& found) {
      if (monitor == Monitor::kLoss) losses.push_back(found.loss);
    };
    Training training(options);
    const TrainingResult result = training.fit();
    if (monitor == Monitor::kLoss) {
      EXPECT_EQ(*result.best_metric, *std::min_element(losses.begin(), losses.end()));
    }
    EXPECT_TRUE(training.trainer.load_best());
    const Evaluation best =
        training.trainer.evaluate(training.test, [&](data::Example& batch) { return training.output_of(batch); });
    EXPECT_EQ(monitor == Monitor::kLoss ? best.loss : best.accuracies[0], *result.best_metric);
  };
  std::string logged;
  log::set_output([&](std::string_view line) { logged += line; });
  train(4, Monitor::kAccuracy);
  EXPECT_EQ(logged.find("judged by"), std::string::npos) << logged;
  train(6, Monitor::kLoss);
  EXPECT_NE(logged.find("judged by the loss now"), std::string::npos) << logged;
  EXPECT_TRUE(std::filesystem::exists(folder.path("earlier-1")));
  logged.clear();
  train(7, Monitor::kLoss);
  log::set_output({});
  EXPECT_EQ(logged.find("judged by"), std::string::npos) << logged;
  train(7, Monitor::kAccuracy);  // nothing is left to train, but the last epoch is judged
}

// The epoch is not lost: it is evaluated when the training goes on.
TEST(TrainerUnit, SavesAnEpochBeforeItsEvaluation) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  const TrainerOptions options{.epochs = 1, .checkpoint_dir = folder.path()};
  {
    Training training(options);
    const auto step = [&](data::Example& batch) {
      if (!training.net->is_training()) throw std::runtime_error("no evaluation today");
      return training.output_of(batch);
    };
    EXPECT_THROW(training.trainer.fit(training.train, training.test, step), std::runtime_error);
  }
  TrainerOptions resumed = options;
  resumed.resume = true;
  std::int64_t steps = 0;
  resumed.callbacks.on_step_end = [&](const StepReport&) { ++steps; };
  Training training(resumed);
  const TrainingResult result = training.fit();
  EXPECT_EQ(steps, 0);
  Training whole({.epochs = 1});
  EXPECT_EQ(result.evaluation->loss, whole.fit().evaluation->loss);
}

// An epoch that was not evaluated because more were to follow is the last one now.
TEST(TrainerUnit, EvaluatesTheLastOfFewerEpochs) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  TrainerOptions options{.epochs = 9, .evaluate_every = 5, .checkpoint_dir = folder.path()};
  Trainer* trainer = nullptr;
  options.callbacks.on_epoch_end = [&](const EpochReport& epoch) {
    if (epoch.epoch == 2) trainer->stop();
  };
  Training training(options);
  trainer = &training.trainer;
  EXPECT_FALSE(training.fit().evaluation);
  TrainerOptions fewer{.epochs = 3, .evaluate_every = 5, .checkpoint_dir = folder.path(), .resume = true};
  const TrainingResult result = Training(fewer).fit();
  ASSERT_TRUE(result.evaluation);
  EXPECT_EQ(result.evaluation->epoch, 2);
  EXPECT_FALSE(Training(fewer).fit().evaluation);  // once
  Training whole({.epochs = 3});
  EXPECT_EQ(result.evaluation->loss, whole.fit().evaluation->loss);
}

TEST(TrainerUnit, WarnsOfOptionsThatAreNotTheSavedOnes) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  const auto train = [&](std::int64_t epochs, double weight_decay) {
    Net net = make_net();
    torch::optim::SGD optimizer(net->parameters(),
                                torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(weight_decay));
    data::DataLoader loader(Sines(20), {.batch_size = 4});
    Trainer trainer(net, optimizer, {.epochs = epochs, .checkpoint_dir = folder.path(), .resume = true});
    std::string logged;
    log::set_output([&](std::string_view line) { logged += line; });
    trainer.fit(loader, [&](data::Example& batch) -> StepOutput {
      return {torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target)};
    });
    log::set_output({});
    return logged;
  };
  train(1, 0.5);
  EXPECT_EQ(train(2, 0.5).find("options"), std::string::npos);
  expect_in(train(3, 0.25), {"the options that were saved", "optimizer.group.0.weight_decay is 0.5, not 0.25"});
}

// As many, but others. Where one side has no names, as in older checkpoints, nothing is checked.
TEST(TrainerUnit, ResumesOnlyTheClassesThatWereSaved) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  std::int64_t epochs = 0;
  const auto train = [&](std::vector<std::string> classes) {
    Training training(
        {.epochs = ++epochs, .checkpoint_dir = folder.path(), .resume = true, .classes = std::move(classes)});
    return training.fit().epochs;
  };
  const auto refusal = [&](std::vector<std::string> classes) -> std::string {
    try {
      train(std::move(classes));
    } catch (const checkpoint::CheckpointError& error) {
      --epochs;
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(train({}), 1);
  EXPECT_EQ(train({"ant", "bee\n", "\xff"}), 2);
  expect_in(refusal({"ant", "wasp", "\xff"}),
            {"cannot resume: class 1 is 'bee\\x0a' in the checkpoint, and 'wasp' in this training", "another folder"});
  expect_in(refusal({"ant", "bee\n"}), {"class 2 is '\\xff' in the checkpoint, and missing in this training"});
  expect_in(refusal({"ant", "bee\n", "\xff", "fly"}), {"class 3 is missing in the checkpoint, and 'fly'"});
  EXPECT_EQ(train({"ant", "bee\n", "\xff"}), 3);
  EXPECT_EQ(train({}), 4);
}

// Two layers of equal shapes, of which one trains. Checkpoints from before the names are not checked.
TEST(TrainerUnit, ResumesOnlyWithTheParametersThatWereTrained) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  const auto train = [&](const std::string& part, std::int64_t epochs) -> std::string {
    Net net(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6));
    std::vector<torch::Tensor> trained;
    for (auto& parameter : net->named_parameters()) {
      parameter.value().set_requires_grad(parameter.key().starts_with(part));
      if (parameter.value().requires_grad()) trained.push_back(parameter.value());
    }
    torch::optim::SGD optimizer(trained, torch::optim::SGDOptions(0.05).momentum(0.9));
    data::DataLoader loader(Sines(8), {.batch_size = 4});
    try {
      Trainer trainer(net, optimizer, {.epochs = epochs, .checkpoint_dir = folder.path(), .resume = true});
      return std::to_string(trainer
                                .fit(loader,
                                     [&](data::Example& batch) -> StepOutput {
                                       const torch::Tensor scores = net->forward(batch.data);
                                       return {torch::nn::functional::cross_entropy(scores, batch.target), scores};
                                     })
                                .steps);
    } catch (const checkpoint::CheckpointError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      return error.what();
    }
  };
  EXPECT_EQ(train("0.", 1), "2");
  expect_in(train("1.", 2),
            {"cannot resume: optimizer parameter 0 is '0.weight' in the checkpoint, and '1.weight' in this training",
             "model.freeze", "another folder"});
  EXPECT_EQ(train("0.", 2), "4");
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".ckpt") continue;
    checkpoint::TensorFile file = checkpoint::read_tensor_file(entry.path());
    EXPECT_EQ(file.metadata.erase("value.trained"), 1U);
    checkpoint::write_tensor_file(entry.path(), file);
  }
  EXPECT_EQ(train("1.", 3), "6");
}

// 60 samples are five whole batches of three ranks, but the 44 that are left are three and a part of one.
TEST(TrainerResumeMulti, TrainsTheLastPartOfABatchToo) {
  const SharedScratchFolder folder;
  run_processes(2, [&](int) {
    const ProcessGroupGuard group;
    TrainerOptions options{.epochs = 1, .checkpoint_dir = folder.path()};
    Trainer* trainer = nullptr;
    options.callbacks.on_step_end = [&](const StepReport& step) {
      if (step.step == 2) trainer->stop();
    };
    Training training(options);
    trainer = &training.trainer;
    EXPECT_EQ(training.fit().steps, 2);  // 16 of 60 samples
  });
  run_processes(3, [&](int) {
    const ProcessGroupGuard group;
    std::int64_t samples = 0;
    TrainerOptions options{.epochs = 1, .checkpoint_dir = folder.path(), .resume = true};
    options.callbacks.on_epoch_end = [&](const EpochReport& epoch) { samples = epoch.samples; };
    Training training(options);
    EXPECT_EQ(training.fit().steps, 6);
    EXPECT_EQ(samples, 45);  // one is repeated, so that all ranks have as many
  });
}

}  // namespace
}  // namespace lockstep::test
