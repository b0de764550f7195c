// What users get wrong, and what goes wrong on the way: each is an error on every rank that says what to do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/errors.h"
#include "lockstep/nn/lr_schedules.h"
#include "nn/error_texts.h"
#include "small_training.h"
#include "support/full_disk.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"
#include "trainer/saved_parts.h"

namespace lockstep::test {
namespace {

// Of any exception; that of c10::Error has more lines.
template <typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

StepOutput loss_of(Net& net, const data::Example& batch) {
  return {torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target)};
}

// It would end the epoch's own loop over the loader.
TEST(TrainerErrorsUnit, AnEvaluationWithinAnEpochNeedsALoaderOfItsOwn) {
  const ProcessGroupGuard group;
  std::optional<Training> training;
  TrainerOptions options{.epochs = 1};
  options.callbacks.on_step_end = [&](const StepReport& /*step*/) {
    training->trainer.evaluate(training->train, [&](data::Example& batch) { return training->output_of(batch); });
  };
  training.emplace(options);
  expect_in(message_of([&] { training->fit(); }), {"another loop over the same loader", "a loader of its own"});
}

TEST(TrainerErrorsUnit, SayWhatIsWrong) {
  expect_in(message_of([] { Training training({.epochs = 1}); }), {"there is no world", "ProcessGroupGuard"});
  const ProcessGroupGuard group;
  expect_in(message_of([] { Training training({.epochs = -1}); }), {"epochs", "at least 0", "-1"});
  expect_in(message_of([] { Training training({.accumulation = 0}); }), {"accumulation", "at least 1"});
  expect_in(message_of([] { Training training({.ema_decay = 1.5}); }), {"ema_decay", "[0, 1)", "1.5"});
  expect_in(message_of([] { Training training({.checkpoint_dir = ".", .keep_last = 0}); }),
            {"keep_last", "at least 1"});
  expect_in(message_of([] { Training training({.resume = true}); }), {"resume needs checkpoint_dir"});
  Net other = make_net();
  Net net = make_net();
  torch::optim::SGD optimizer(other->parameters(), 0.1);
  expect_in(message_of([&] { Trainer trainer(net, optimizer); }), {"none of the model's parameters"});
  std::vector<torch::Tensor> repeated = net->parameters();
  repeated.push_back(repeated.front());
  torch::optim::SGD twice(repeated, 0.1);
  expect_in(message_of([&] { Trainer trainer(net, twice); }), {"twice", "lockstep::distinct_parameters(model)"});

  Training training({.epochs = 1, .patience = 1});
  const auto step = [&](data::Example& batch) { return loss_of(training.net, batch); };
  expect_in(message_of([&] { training.trainer.fit(training.train, step); }),
            {"patience needs evaluations", "second loader"});
  // The evaluation would move the training's place in its epoch, which checkpoints keep.
  Training same({.epochs = 1, .limit_batches = 2});
  const auto step_of_same = [&](data::Example& batch) { return loss_of(same.net, batch); };
  expect_in(message_of([&] { same.trainer.fit(same.train, same.train, step_of_same); }),
            {"the same loader", "for training and for evaluation", "a loader of its own"});
  Training vague({.epochs = 1});
  expect_in(message_of([&] {
              vague.trainer.fit(vague.train, [&](data::Example& batch) { return vague.net->forward(batch.data); });
            }),
            {"a loss of one number", "[4, 3]"});
  Training blind({.epochs = 1, .monitor = Monitor::kAccuracy});
  expect_in(message_of([&] {
              blind.trainer.fit(blind.train, blind.test,
                                [&](data::Example& batch) { return loss_of(blind.net, batch); });
            }),
            {"monitor is kAccuracy", "no scores", "kLoss"});
}

// In all that decides what ranks do together. Before that is done: the group works on.
TEST(TrainerErrorsMulti, NameRanksThatDiffer) {
  using Options = TrainerOptions;
  const std::vector<std::pair<std::function<void(Options&)>, std::string>> changes{
      {[](Options& options) { options.epochs = 2; }, "epochs: 2"},
      {[](Options& options) { options.limit_batches = 2; }, "limit_batches: 2"},
      {[](Options& options) { options.accumulation = 2; }, "accumulation: 2"},
      {[](Options& options) { options.clip_grad_norm = 0.5; }, "clip_grad_norm: 0.5"},
      {[](Options& options) { options.ema_decay = 0.5; }, "ema_decay: 0.5"},
      {[](Options& options) { options.precision = TrainingPrecision::kBFloat16; }, "precision: 1"},
      {[](Options& options) { options.fused = false; }, "fused: false"},
      {[](Options& options) { options.non_finite = std::nullopt; }, "non_finite: -1"},
      {[](Options& options) { options.evaluate_every = 2; }, "evaluate_every: 2"},
      {[](Options& options) { options.monitor = Monitor::kAccuracy; }, "monitor: 1"},
      {[](Options& options) {
         options.top_k = {1, 2};
       },
       "top_k: 1, 2"},
      {[](Options& options) { options.confusion_classes = kClasses; }, "confusion_classes: 3"},
      {[](Options& options) { options.patience = 1; }, "patience: 1"},
      {[](Options& options) { options.min_delta = 0.5; }, "min_delta: 0.5"},
      {[](Options& options) { options.checkpoint_dir = "of rank 1"; }, "checkpoints: true"},
      {[](Options& options) { options.checkpoint_every_steps = 3; }, "checkpoint_every_steps: 3"},
      {[](Options& options) { options.classes = {"ant"}; }, "class 0: ant"},
  };
  run_processes(3, [&](int rank) {
    const ProcessGroupGuard group;
    for (const auto& [change, expected] : changes) {
      TrainerOptions options;
      if (rank == 1) change(options);
      expect_in(message_of([&] { Training training(options); }), {"the same options", expected + " on rank(s) 1"});
    }
    Training training({.epochs = 1});
    data::DataLoader uneven(Sines(13), {.batch_size = 2, .exact = true});
    const auto step = [&](data::Example& batch) { return loss_of(training.net, batch); };
    expect_in(message_of([&] { training.trainer.fit(uneven, step); }),
              {"equally many batches on every rank", "batches in an epoch: 3 on rank(s) 0"});
    EXPECT_EQ(training.fit().end, TrainingEnd::kFinished);
  });
}

// Their weights would not stay the same.
TEST(TrainerErrorsMulti, NameRanksWithOtherSchedules) {
  run_processes(2, [](int rank) {
    const ProcessGroupGuard group;
    Net net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    TrainerOptions options;
    options.scheduler = std::make_shared<optim::StepLR>(optimizer, 3 + rank);
    expect_in(message_of([&] { Trainer trainer(net, optimizer, options); }),
              {"the same options", "scheduler: of each epoch", "step_size: 4", "on rank(s) 1"});
    if (rank == 1) options.scheduler = nullptr;
    expect_in(message_of([&] { Trainer trainer(net, optimizer, options); }), {"scheduler: none on rank(s) 1"});
  });
}

// The others would wait for it.
TEST(TrainerErrorsMulti, AreThoseOfEveryRankWhereOneIsWrong) {
  run_processes(2, [](int rank) {
    const ProcessGroupGuard group;
    expect_in(message_of([&] { Training training({.accumulation = rank}); }), {"accumulation", "at least 1", "got 0"});
    TrainerOptions nowhere;
    nowhere.model_file = rank == 0 ? "/nowhere/model.safetensors" : "";
    expect_in(message_of([&] { Training training(nowhere); }), {"model_file", "/nowhere is no folder"});
  });
}

TEST(TrainerErrorsMulti, NameTheRankWhoseLossIsNotFinite) {
  run_processes(2, [](int rank) {
    const ProcessGroupGuard group;
    for (const bool skip : {false, true}) {
      TrainerOptions options{.epochs = 1};
      if (skip) options.non_finite = NonFinitePolicy::kSkip;
      std::vector<bool> skipped;
      options.callbacks.on_step_end = [&](const StepReport& step) { skipped.push_back(step.skipped); };
      Training training(options);
      int steps = 0;
      const auto step = [&](data::Example& batch) -> StepOutput {
        const bool bad = ++steps == 3 && rank == 1;
        StepOutput output = loss_of(training.net, batch);
        if (bad) output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
        return output;
      };
      if (skip) {
        EXPECT_TRUE(std::isfinite(training.trainer.fit(training.train, step).loss));
        EXPECT_EQ(std::count(skipped.begin(), skipped.end(), true), 1);
        EXPECT_TRUE(skipped[2]);
      } else {
        expect_in(message_of([&] { training.trainer.fit(training.train, step); }),
                  {"step 2", "the loss of rank 1 is nan"});
      }
    }
  });
}

// It has no loss, but it is an epoch: it ends, it is saved, and the next one begins.
TEST(TrainerErrorsMulti, AnEpochOfSkippedStepsIsSaved) {
  const SharedScratchFolder folder;
  run_processes(2, [&](int rank) {
    const ProcessGroupGuard group;
    std::vector<double> losses;
    std::vector<std::int64_t> saved;
    TrainerOptions options{
        .epochs = 2, .non_finite = NonFinitePolicy::kSkip, .limit_batches = 3, .checkpoint_dir = folder.path()};
    options.callbacks.on_epoch_end = [&](const EpochReport& epoch) { losses.push_back(epoch.loss); };
    options.callbacks.on_checkpoint = [&](const CheckpointReport& report) { saved.push_back(report.epoch); };
    Training training(options);
    int steps = 0;
    const auto step = [&](data::Example& batch) -> StepOutput {
      StepOutput output = loss_of(training.net, batch);
      if (++steps <= 3 && rank == 1) output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
      return output;
    };
    EXPECT_EQ(training.trainer.fit(training.train, step).epochs, 2);
    ASSERT_EQ(losses.size(), 2U);
    EXPECT_TRUE(std::isnan(losses[0]));
    EXPECT_TRUE(std::isfinite(losses[1]));
    EXPECT_EQ(saved, (std::vector<std::int64_t>{1, 2}));
  });
}

// A batch of one rank makes the running statistics NaN. The end of the epoch would find that.
TEST(TrainerErrorsMulti, AStepThatTheScalerSkipsLeavesTheBuffersAsTheyWere) {
  run_processes(2, [](int rank) {
    const ProcessGroupGuard group;
    Net net = make_net();
    const auto statistics = [&] {
      return torch::cat({net->named_buffers()["1.running_mean"], net->named_buffers()["1.running_var"]});
    };
    std::vector<torch::Tensor> after;  // each step
    TrainerOptions options{.epochs = 1, .precision = TrainingPrecision::kFloat16};
    options.callbacks.on_step_end = [&](const StepReport& step) {
      EXPECT_TRUE(step.skipped || after.size() != 2);
      after.push_back(statistics());
    };
    torch::optim::SGD optimizer(net->parameters(), 0.05);
    data::DataLoader loader(Sines(60), {.batch_size = 4});
    Trainer trainer(net, optimizer, options);
    const auto step = [&](data::Example& batch) {
      if (after.size() == 2 && rank == 0) batch.data.fill_(std::numeric_limits<double>::quiet_NaN());
      return loss_of(net, batch);
    };
    EXPECT_EQ(message_of([&] { trainer.fit(loader, step); }), "no error");
    ASSERT_EQ(after.size(), 8U);
    EXPECT_TRUE(torch::equal(after[2], after[1]));
    EXPECT_FALSE(torch::equal(after[3], after[2]));
  });
}

// A gradient that is not finite under a loss that is. Of a parameter that no later loss depends on: the end of the
// epoch finds it, before anything is saved. Where all gradients are read, its own step does; but not a step that
// overflows.
TEST(TrainerErrorsMulti, NoGradientThatIsNotFiniteStaysUnseen) {
  const SharedScratchFolder folder;
  run_processes(2, [&](int) {
    const ProcessGroupGuard group;
    struct Case {
      TrainerOptions options;
      std::string expected;
      bool overflows = false;  // the parameter, with gradients that are finite
    };
    TrainerOptions saves{.epochs = 1, .checkpoint_dir = folder.path()};
    TrainerOptions clips = saves;
    clips.clip_grad_norm = 1;
    TrainerOptions skips{.epochs = 1, .non_finite = NonFinitePolicy::kSkip};
    TrainerOptions skips_and_saves = skips;
    skips_and_saves.checkpoint_dir = folder.path();
    const std::string at_the_end = "before step 8: 'idle' is not finite since an earlier step";
    for (const Case& one :
         {Case{saves, at_the_end}, Case{clips, "step 2: the gradient of 'idle' is not finite"}, Case{skips, "no error"},
          Case{clips, at_the_end, true}, Case{skips_and_saves, at_the_end, true}}) {
      Net net = make_net();
      const torch::Tensor idle = net->register_parameter("idle", torch::zeros({3}));
      torch::optim::SGD optimizer(net->parameters(), 0.05);
      data::DataLoader loader(Sines(60), {.batch_size = 4});
      Trainer trainer(net, optimizer, one.options);
      int steps = 0;
      const auto step = [&](data::Example& batch) -> StepOutput {
        StepOutput output = loss_of(net, batch);
        if (++steps != 3) return output;
        if (one.overflows) {
          idle.data().fill_(std::numeric_limits<double>::infinity());
        } else {
          output.loss = output.loss + idle.sqrt().mul(0).sum();  // 0, with the gradient infinity * 0
        }
        return output;
      };
      expect_in(message_of([&] { trainer.fit(loader, step); }), {one.expected});
    }
    EXPECT_TRUE(checkpoint::CheckpointManager(folder.path()).steps().empty());
  });
}

TEST(TrainerErrorsMulti, RefuseACheckpointOfAnotherModel) {
  const SharedScratchFolder folder;
  run_processes(2, [&](int) {
    const ProcessGroupGuard group;
    Training training({.epochs = 1, .checkpoint_dir = folder.path()});
    training.fit();
    Training wider({.epochs = 2, .checkpoint_dir = folder.path(), .resume = true}, 60, /*hidden=*/9);
    expect_in(message_of([&] { wider.fit(); }),
              {"cannot resume", "0.weight", "[8, 6]", "[9, 6]", "another folder than "});
    Training fewer({.epochs = 2, .checkpoint_dir = folder.path(), .resume = true}, /*samples=*/59);
    expect_in(message_of([&] { fewer.fit(); }), {"dataset size 60", "59"});
  });
}

// A file may come from anyone: its names must not move a terminal's cursor, nor fill the screen.
TEST(TrainerErrorsUnit, ShowNamesOfFilesCutAndWithoutControlCharacters) {
  const std::string name = "\x1b[2J" + std::string(200, 'x');
  const std::string shown = "\\x1b[2J" + std::string(76, 'x') + "...";
  checkpoint::StateDict state;
  state.insert(name, torch::zeros({1}));
  Net net = make_net();
  const std::string error = message_of([&] { checkpoint::load_state_dict(*net, state); });
  expect_in(error, {"missing in the file: 0.weight", "unexpected in the file: " + shown});
  EXPECT_EQ(error.find('\x1b'), std::string::npos) << error;
  EXPECT_EQ(trainer_detail::first_other_name({"in the checkpoint", name + "1\n"}, {"in this training", name + "2\n"}),
            "class 0 is '" + shown + "' in the checkpoint, and '" + shown + "' in this training");
}

// Rank 0 cannot write its second checkpoint: every rank learns why, and the first one is as it was.
TEST(TrainerErrorsFault, FullDiskInTheMiddle) {
  const SharedScratchFolder folder;
  run_processes(2, [&](int rank) {
    const ProcessGroupGuard group;
    std::optional<FileSizeLimit> full;
    TrainerOptions options{.epochs = 3, .checkpoint_dir = folder.path()};
    options.callbacks.on_checkpoint = [&, saved = 0](const CheckpointReport& report) mutable {
      EXPECT_EQ(report.epoch, 1);
      if (++saved == 2 && rank == 0) full.emplace(100);  // before the evaluation, and with it
    };
    {
      Training training(options);
      const std::string error = message_of([&] { training.fit(); });
      expect_in(error, {"File too large"});
      if (rank != 0) expect_in(error, {"rank 0: "});
      EXPECT_EQ(training.trainer.epoch(), 2);
    }
    full.reset();
    Training training({.epochs = 3, .checkpoint_dir = folder.path(), .resume = true});
    EXPECT_EQ(training.fit().epochs, 3);
  });
}

// A dataset's error on one rank ends all of them.
TEST(TrainerErrorsFault, OneCorruptSample) {
  class Corrupt : public Sines {
   public:
    using Sines::Sines;
    data::Example get(std::int64_t index) const override {
      if (index == 37) throw data::DataError(ErrorCode::kCorrupt, "pictures/37.jpg: no picture");
      return Sines::get(index);
    }
  };
  run_processes(2, [](int) {
    std::string error;
    try {
      const ProcessGroupGuard group;
      Training training({.epochs = 1});
      data::DataLoader loader(Corrupt(60), {.batch_size = 4, .shuffle = true});
      training.trainer.fit(loader, [&](data::Example& batch) { return loss_of(training.net, batch); });
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    EXPECT_TRUE(error.find("pictures/37.jpg") != std::string::npos || error.find("rank") != std::string::npos) << error;
    EXPECT_FALSE(error.empty());
  });
}

}  // namespace
}  // namespace lockstep::test
