// What users get wrong, and what goes wrong on the way: each is an error on every rank that says what to do.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/data/errors.h"
#include "nn/error_texts.h"
#include "small_job.h"
#include "support/full_disk.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

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

TEST(TrainerErrorsUnit, SayWhatIsWrong) {
  expect_in(message_of([] { Job job({.epochs = 1}); }), {"there is no world", "ProcessGroupGuard"});
  const ProcessGroupGuard group;
  expect_in(message_of([] { Job job({.epochs = -1}); }), {"epochs", "at least 0", "-1"});
  expect_in(message_of([] { Job job({.accumulation = 0}); }), {"accumulation", "at least 1"});
  expect_in(message_of([] { Job job({.ema_decay = 1.5}); }), {"ema_decay", "[0, 1)", "1.5"});
  expect_in(message_of([] { Job job({.resume = true}); }), {"resume needs checkpoint_dir"});
  Net other = make_net();
  Net net = make_net();
  torch::optim::SGD optimizer(other->parameters(), 0.1);
  expect_in(message_of([&] { Trainer trainer(net, optimizer); }), {"none of the model's parameters"});

  Job job({.epochs = 1, .patience = 1});
  const auto step = [&](data::Example& batch) { return loss_of(job.net, batch); };
  expect_in(message_of([&] { job.trainer.fit(job.train, step); }), {"patience needs evaluations", "second loader"});
  Job vague({.epochs = 1});
  expect_in(message_of([&] {
              vague.trainer.fit(vague.train, [&](data::Example& batch) { return vague.net->forward(batch.data); });
            }),
            {"a loss of one number", "[4, 3]"});
  Job blind({.epochs = 1, .monitor = Monitor::kAccuracy});
  expect_in(message_of([&] {
              blind.trainer.fit(blind.train, blind.test,
                                [&](data::Example& batch) { return loss_of(blind.net, batch); });
            }),
            {"monitor is kAccuracy", "no scores", "kLoss"});
}

TEST(TrainerErrorsMulti, NameRanksThatDiffer) {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard group;
    {
      Job job({.epochs = rank == 1 ? 2 : 1});
      expect_in(message_of([&] { job.fit(); }), {"the same options", "epochs: 2 on rank(s) 1"});
    }
    {
      Job job({.epochs = 1, .fused = rank != 2});
      expect_in(message_of([&] { job.fit(); }), {"fused: false on rank(s) 2", "fused: true on rank(s) 0, 1"});
    }
    Job job({.epochs = 1});
    data::DataLoader uneven(Sines(13), {.batch_size = 2, .exact = true});
    expect_in(
        message_of([&] { job.trainer.fit(uneven, [&](data::Example& batch) { return loss_of(job.net, batch); }); }),
        {"equally many batches on every rank", "batches in an epoch: 3 on rank(s) 0"});
    // The group works on, and so does the trainer.
    EXPECT_EQ(job.fit().end, TrainingEnd::kFinished);
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
      Job job(options);
      int steps = 0;
      const auto step = [&](data::Example& batch) -> StepOutput {
        const bool bad = ++steps == 3 && rank == 1;
        StepOutput output = loss_of(job.net, batch);
        if (bad) output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
        return output;
      };
      if (skip) {
        job.trainer.fit(job.train, step);
        EXPECT_EQ(std::count(skipped.begin(), skipped.end(), true), 1);
        EXPECT_TRUE(skipped[2]);
      } else {
        expect_in(message_of([&] { job.trainer.fit(job.train, step); }), {"step 2", "the loss of rank 1 is nan"});
      }
    }
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
    Job job({.epochs = 1, .checkpoint_dir = folder.path()});
    job.fit();
    Job wider({.epochs = 2, .checkpoint_dir = folder.path(), .resume = true}, 60, /*hidden=*/9);
    expect_in(message_of([&] { wider.fit(); }),
              {"cannot resume", "0.weight", "[8, 6]", "[9, 6]", "another folder than "});
    Job fewer({.epochs = 2, .checkpoint_dir = folder.path(), .resume = true}, /*samples=*/59);
    expect_in(message_of([&] { fewer.fit(); }), {"dataset size 60", "59"});
  });
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
      Job job(options);
      const std::string error = message_of([&] { job.fit(); });
      expect_in(error, {"File too large"});
      if (rank != 0) expect_in(error, {"rank 0: "});
      EXPECT_EQ(job.trainer.epoch(), 2);
    }
    full.reset();
    Job job({.epochs = 3, .checkpoint_dir = folder.path(), .resume = true});
    EXPECT_EQ(job.fit().epochs, 3);
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
      Job job({.epochs = 1});
      data::DataLoader loader(Corrupt(60), {.batch_size = 4, .shuffle = true});
      job.trainer.fit(loader, [&](data::Example& batch) { return loss_of(job.net, batch); });
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    EXPECT_TRUE(error.find("pictures/37.jpg") != std::string::npos || error.find("rank") != std::string::npos) << error;
    EXPECT_FALSE(error.empty());
  });
}

}  // namespace
}  // namespace lockstep::test
