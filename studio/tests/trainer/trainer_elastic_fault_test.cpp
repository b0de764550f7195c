// A Trainer that outlives its ranks: which die in the forward and backward pass, in an evaluation, in a save and at the
// end of an epoch.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <vector>

#include "lockstep/c10d/objects.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "small_training.h"
#include "support/forked.h"
#include "support/process.h"
#include "support/process_ranks.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

enum class Moment { kNever, kForward, kBackward, kEvaluation, kCheckpoint, kEpochEnd };

struct Case {
  int world = 2;
  bool with_newcomer = true;
  Moment moment = Moment::kNever;
  int victim = 0;
  bool with_options = false;  // micro-batches of several batches, clipping, checkpoints within epochs, ...

  std::int64_t death_step() const { return with_options ? 3 : 6; }
  std::int64_t steps() const { return with_options ? 6 : 3 * ((60 / world + 3) / 4); }
};

// What a rank has seen. In maps, because callbacks are called again after a death in one of them.
struct Seen {
  std::map<std::int64_t, double> epoch_losses, evaluation_losses;
  std::map<std::int64_t, std::int64_t> epoch_samples, evaluation_samples;
  std::map<std::int64_t, int> steps;
};

TrainingResult fit_until_death(Training& training, const Case& which, bool dies, Seen& seen) {
  const auto die_at = [&](Moment moment) {
    if (dies && which.moment == moment) raise(SIGKILL);
  };
  return training.trainer.fit(training.train, training.test, [&](data::Example& batch) {
    const bool is_training = training.net->is_training();
    const bool is_time = training.trainer.step() + 1 >= which.death_step();
    if (is_training && is_time) die_at(Moment::kForward);
    if (!is_training && is_time) die_at(Moment::kEvaluation);
    StepOutput output = training.output_of(batch);
    if (is_training && is_time && dies && which.moment == Moment::kBackward)
      output.scores.register_hook([](const torch::Tensor&) { raise(SIGKILL); });
    return output;
  });
}

void train(const Case& which, int number, const std::string& folder, const std::string& name,
           const std::function<void(Training& training, const Seen& seen)>& judge) {
  const bool is_newcomer = number >= which.world;
  const bool dies = number == which.victim;
  Seen seen;
  std::int64_t steps = 0;
  TrainerOptions options{.epochs = 3, .ema_decay = 0.9, .checkpoint_dir = folder + "/" + name};
  if (which.with_options) {
    options.precision = TrainingPrecision::kBFloat16;
    options.accumulation = 2;
    options.clip_grad_norm = 0.5;
    options.non_finite = NonFinitePolicy::kSkip;
    options.limit_batches = 4;
    options.checkpoint_every_steps = 1;
    options.asynchronous_checkpoints = true;
  }
  options.elastic.emplace();
  options.elastic->newcomers = comm::FileStore::open(folder + "/" + name + "-waiting").value();
  if (which.with_newcomer) options.elastic->newcomer_timeout = std::chrono::seconds(60);
  options.newcomer = is_newcomer;
  options.callbacks.on_step_end = [&](const StepReport& step) {
    steps = step.step;
    ++seen.steps[step.step];
  };
  options.callbacks.on_epoch_end = [&](const EpochReport& epoch) {
    if (dies && which.moment == Moment::kEpochEnd && steps >= which.death_step()) raise(SIGKILL);
    seen.epoch_losses[epoch.epoch] = epoch.loss;
    seen.epoch_samples[epoch.epoch] = epoch.samples;
  };
  options.callbacks.on_checkpoint = [&](const CheckpointReport&) {
    if (dies && which.moment == Moment::kCheckpoint && steps >= which.death_step()) raise(SIGKILL);
  };
  options.callbacks.on_evaluation = [&](const Evaluation& found) {
    seen.evaluation_losses[found.epoch] = found.loss;
    seen.evaluation_samples[found.epoch] = found.samples;
  };
  InitOptions world{.init_method = "file://" + folder + "/" + name + "-store",
                    .rank = number,
                    .world_size = which.world,
                    .timeout = std::chrono::seconds(90),
                    .enable_reconfigure = true};
  if (is_newcomer) world = {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()};
  const ProcessGroupGuard guard("", world);
  Training training(options);
  const TrainingResult result = fit_until_death(training, which, dies, seen);
  if (which.moment == Moment::kNever && is_newcomer) {
    EXPECT_EQ(result.end, TrainingEnd::kNotNeeded);
    return;
  }
  EXPECT_EQ(result.end, TrainingEnd::kFinished);
  EXPECT_EQ(result.epochs, 3);
  judge(training, seen);
}

std::vector<torch::Tensor> values_in_order(const Training& training) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& parameter : training.net->parameters()) all.push_back(parameter.detach().clone());
  for (const torch::Tensor& buffer : training.net->buffers()) all.push_back(buffer.clone());
  return all;
}

using Numbers = std::map<std::int64_t, double>;
void expect_numbers(const Numbers& found, const Numbers& expected, bool same_bits) {
  for (const auto& [epoch, value] : found) EXPECT_NEAR(value, expected.at(epoch), same_bits ? 0 : 0.02) << epoch;
}

void expect_as_without_death(const Case& which) {
  SCOPED_TRACE(testing::Message() << "world " << which.world << ", moment " << static_cast<int>(which.moment)
                                  << ", victim " << which.victim << ", newcomer " << which.with_newcomer);
  const SharedScratchFolder scratch;
  const std::string folder = scratch.path().native();
  Case quiet = which;
  quiet.moment = Moment::kNever;
  using Outcome = std::tuple<std::vector<torch::Tensor>, Numbers, Numbers>;
  run_processes(which.world, [&](int number) {
    train(quiet, number, folder, "quiet", [&](Training& training, const Seen& seen) {
      if (get_rank() != 0) return;
      std::ofstream(folder + "/outcome") << encode_object(
          Outcome(values_in_order(training), seen.epoch_losses, seen.evaluation_losses));
    });
  });
  run_processes(which.world + (which.with_newcomer ? 1 : 0), [&](int number) {
    run_mortal([&] {
      train(which, number, folder, "deadly", [&](Training& training, const Seen& seen) {
        std::ifstream file(folder + "/outcome");
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        const auto [values, losses, evaluations] = decode_object<Outcome>(text);
        const std::vector<torch::Tensor> mine = values_in_order(training);
        for (std::size_t i = 0; i < mine.size(); ++i) {
          // With fewer ranks the running means are those of rank 0, which has other micro-batches.
          const bool is_buffer = i >= training.net->parameters().size();
          EXPECT_TRUE(which.with_newcomer ? torch::equal(mine[i], values.at(i))
                                          : is_buffer || torch::allclose(mine[i], values.at(i), 1e-3, 1e-4))
              << i;
        }
        for (const auto& other : all_gather_object(mine)) {
          for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(torch::equal(mine[i], other.at(i))) << i;
        }
        expect_numbers(seen.epoch_losses, losses, which.with_newcomer);
        expect_numbers(seen.evaluation_losses, evaluations, which.with_newcomer);
        const std::int64_t in_epoch = which.with_options ? 4 * 4 * which.world : 60;
        for (const auto& [epoch, samples] : seen.epoch_samples) EXPECT_EQ(samples, in_epoch) << epoch;
        for (const auto& [epoch, samples] : seen.evaluation_samples) EXPECT_EQ(samples, 31) << epoch;
        EXPECT_EQ(get_world_size(), which.with_newcomer ? which.world : which.world - 1);
        if (number >= which.world) return;
        EXPECT_EQ(static_cast<std::int64_t>(seen.steps.size()), which.steps());
      });
    });
  });
}

class TrainerElasticFault : public testing::TestWithParam<Moment> {};
INSTANTIATE_TEST_SUITE_P(All, TrainerElasticFault,
                         testing::Values(Moment::kForward, Moment::kBackward, Moment::kEvaluation, Moment::kCheckpoint,
                                         Moment::kEpochEnd));

TEST_P(TrainerElasticFault, ANewcomerTakesThePlaceAndTheBitsAreTheSame) {
  expect_as_without_death({.world = 2, .moment = GetParam(), .victim = 0});
  expect_as_without_death({.world = 3, .moment = GetParam(), .victim = 2});
}
TEST_P(TrainerElasticFault, FewerRanksComputeTheSameMicroBatches) {
  expect_as_without_death({.world = 3, .with_newcomer = false, .moment = GetParam(), .victim = 0});
  expect_as_without_death({.world = 4, .with_newcomer = false, .moment = GetParam(), .victim = 2});
}

TEST_P(TrainerElasticFault, WithOtherOptions) {
  expect_as_without_death({.world = 2, .moment = GetParam(), .victim = 0, .with_options = true});
}

TEST(TrainerElasticMulti, OneRankAloneTrains) {
  const SharedScratchFolder folder;
  run_processes(1, [&](int number) {
    train({.world = 1, .victim = -1}, number, folder.path().native(), "quiet",
          [](Training&, const Seen& seen) { EXPECT_EQ(seen.steps.size(), 45U); });
  });
}
TEST(TrainerElasticMulti, ANewcomerIsNotNeeded) {
  const SharedScratchFolder folder;
  run_processes(3, [&](int number) {
    train({.world = 2, .victim = -1}, number, folder.path().native(), "quiet", [](Training&, const Seen&) {});
  });
}

// All epochs are done when the training is resumed: a newcomer that waits learns that it is not needed.
TEST(TrainerElasticMulti, ANewcomerOfAFinishedTrainingIsNotNeeded) {
  for (int world = 1; world <= 3; ++world) {
    const SharedScratchFolder folder;
    const auto fit = [&](int number, bool resume) {
      const bool is_newcomer = number == world;
      TrainerOptions options{.epochs = 1, .checkpoint_dir = folder.path() / "run", .resume = resume};
      options.elastic.emplace();
      options.elastic->newcomers = comm::FileStore::open(folder.path(resume ? "second" : "first")).value();
      options.newcomer = is_newcomer;
      InitOptions place{.init_method = "file://" + folder.path(resume ? "second-store" : "first-store"),
                        .rank = number,
                        .world_size = world,
                        .enable_reconfigure = true};
      if (is_newcomer) place = {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()};
      const ProcessGroupGuard guard("", place);
      Training training(options);
      const TrainingResult result = training.fit();
      EXPECT_EQ(result.end, is_newcomer ? TrainingEnd::kNotNeeded : TrainingEnd::kFinished);
      EXPECT_EQ(result.epochs, is_newcomer ? 0 : 1);
    };
    run_processes(world, [&](int number) { fit(number, /*resume=*/false); });
    run_processes(world + 1, [&](int number) { fit(number, /*resume=*/true); });
  }
}

// As the plain loop does it: the epoch ends at once.
TEST(TrainerElasticMulti, ASmallerLimitEndsTheEpochThatIsResumed) {
  const SharedScratchFolder folder;
  run_processes(1, [&](int) {
    const ProcessGroupGuard guard("", {.enable_reconfigure = true});
    std::vector<std::int64_t> steps, epochs;
    for (const bool is_elastic : {false, true}) {
      TrainerOptions options{.epochs = 2, .checkpoint_dir = folder.path() / (is_elastic ? "elastic" : "plain")};
      Training* training = nullptr;
      options.callbacks.on_step_end = [&](const StepReport& step) {
        if (step.step == 6) training->trainer.stop();
      };
      if (is_elastic) options.elastic.emplace();
      Training first(options);
      training = &first;
      const TrainingResult interrupted = first.fit();
      EXPECT_EQ(interrupted.end, TrainingEnd::kInterrupted);
      options.callbacks = {};
      options.resume = true;
      options.limit_batches = 3;
      Training second(options);
      const TrainingResult result = second.fit();
      EXPECT_EQ(result.end, TrainingEnd::kFinished);
      steps.push_back(result.steps - interrupted.steps);
      epochs.push_back(result.epochs);
    }
    EXPECT_EQ(steps, (std::vector<std::int64_t>{3, 3}));
    EXPECT_EQ(epochs, (std::vector<std::int64_t>{2, 2}));
  });
}

// Two Trainers of one program, which says nothing of newcomers.
TEST(TrainerLaunchedFault, ANewcomerOfTheLauncherTakesThePlaceAndTheBitsAreTheSame) {
  const ScratchFolder quiet, deadly;
  const auto run = [](const ScratchFolder& folder, const std::string& step) {
    return run_program({LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2", "--min-workers", "2", "--newcomers", "1",
                        LOCKSTEP_LAUNCHED_TRAINER, folder.path().native(), step});
  };
  const Finished expected = run(quiet, "0");
  EXPECT_EQ(expected.exit_code, 0) << expected.err;
  const Finished found = run(deadly, "6");
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_NE(found.err.find("a new process takes its place"), std::string::npos) << found.err;
  for (const char* name : {"values.0.0", "values.0.1", "values.1.0", "values.1.1"}) {
    const std::string values = read_file(deadly.path(name));
    EXPECT_TRUE(values == read_file(quiet.path(name)) && !values.empty()) << name << found.err;
  }
}

TEST(TrainerElasticMulti, RefusesWhatItCannotRecover) {
  run_processes(2, [](int) {
    const ProcessGroupGuard guard("", {.enable_reconfigure = true});
    TrainerOptions options{.epochs = 1, .comm_hook = make_noop_hook()};
    options.elastic.emplace();
    EXPECT_THROW(Training{options}, ArgumentError);
    options.comm_hook = nullptr;
    options.elastic->seed = 1;
    EXPECT_THROW(Training{options}, c10::ValueError);
    options.elastic.reset();
    options.newcomer = true;
    EXPECT_THROW(Training{options}, c10::ValueError);
  });
}

}  // namespace
}  // namespace lockstep::test
