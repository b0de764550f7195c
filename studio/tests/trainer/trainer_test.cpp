// The Trainer against loops written by hand, and its evaluations. trainer_stop_test.cpp has its stops,
// trainer_resume_test.cpp its checkpoints, and tests/parity/training_parity_test.cpp compares it with Python.
#include "lockstep/trainer/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/gradient_accumulation.h"
#include "lockstep/nn/lr_schedules.h"
#include "lockstep/nn/mixed_precision.h"
#include "lockstep/report/run.h"
#include "nn/batch_norm/fast_batch_norm.h"
#include "small_training.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"
#include "trainer/command/command_report.h"

namespace lockstep::test {
namespace {

class TrainerMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TrainerMulti, testing::Values(1, 2, 3));

struct Mode {
  std::string name;
  std::int64_t accumulation = 1;
  double clip = 0;
  bool per_step = false;
  bool half = false;
  bool fused = true;
};

// Everything that the Trainer does for the weights, written out.
void train_by_hand(const Mode& mode, Net& net, int epochs) {
  DistributedDataParallel<Net> ddp(net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  optim::StepLR scheduler(optimizer, mode.per_step ? 3 : 1, 0.8);
  data::DataLoader loader(Sines(60), {.batch_size = 4, .shuffle = true, .seed = 3});
  torch::manual_seed(static_cast<std::uint64_t>(get_rank()));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    auto at = loader.begin();
    for (std::int64_t left = loader.size(); left > 0;) {
      const auto parts = static_cast<int>(std::min(mode.accumulation, left));
      optimizer.zero_grad();
      accumulate_gradients(ddp, parts, [&](int) {
        if (left-- != loader.size()) ++at;
        std::optional<Autocast> autocast;
        if (mode.half) autocast.emplace(torch::kCPU);
        return torch::nn::functional::cross_entropy(ddp->forward(at->data), at->target);
      });
      if (mode.clip > 0) clip_grad_norm_(*net, mode.clip);
      if (mode.fused) {
        EXPECT_TRUE(fused_step(optimizer));
      } else {
        optimizer.step();
      }
      if (mode.per_step) scheduler.step();
    }
    if (!mode.per_step) scheduler.step();
  }
}

// The faster layers concern the whole process, so only a program may choose them.
TEST(TrainerAndProcessMulti, LeavesTheLayersOfTheProcessAlone) {
  run_processes(1, [](int) {
    const ProcessGroupGuard group;
    Net net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.05);
    const Trainer trainer(net, optimizer, {.epochs = 1});
    EXPECT_FALSE(nn_detail::is_fast_everywhere());
  });
}

TEST_P(TrainerMulti, HasTheBitsOfALoopWrittenByHand) {
  run_processes(GetParam(), [](int) {
    const ProcessGroupGuard group;
    for (const Mode& mode : {Mode{.name = "plain"}, Mode{.name = "parts", .accumulation = 4, .clip = 0.5},
                             Mode{.name = "schedule", .per_step = true}, Mode{.name = "bfloat16", .half = true},
                             Mode{.name = "the optimizer's own steps", .fused = false}}) {
      auto options = TrainerOptions{.epochs = 2,
                                    .precision = mode.half ? TrainingPrecision::kBFloat16 : TrainingPrecision::kFloat32,
                                    .fused = mode.fused,
                                    .accumulation = mode.accumulation,
                                    .clip_grad_norm = mode.clip};
      Net net = make_net();
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
      options.scheduler = std::make_shared<optim::StepLR>(optimizer, mode.per_step ? 3 : 1, 0.8);
      if (mode.per_step) options.scheduler_interval = TrainerOptions::Interval::kStep;
      data::DataLoader loader(Sines(60), {.batch_size = 4, .shuffle = true, .seed = 3});
      Trainer trainer(net, optimizer, options);
      // A step may return the loss alone.
      const TrainingResult result = trainer.fit(loader, [&](data::Example& batch) {
        return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
      });
      EXPECT_EQ(result.end, TrainingEnd::kFinished);
      EXPECT_EQ(result.epochs, 2);
      EXPECT_EQ(result.steps, 2 * ((loader.size() + mode.accumulation - 1) / mode.accumulation));
      Net by_hand = make_net();
      train_by_hand(mode, by_hand, 2);
      expect_same_values(*net, *by_hand, mode.name);
    }
  });
}

// Loss and accuracy are those of all samples, each once, also where the last evaluation of a rank is empty.
TEST_P(TrainerMulti, EvaluatesExactlyAndWithTheAverages) {
  run_processes(GetParam(), [](int) {
    const ProcessGroupGuard group;
    std::vector<Evaluation> seen;
    TrainerOptions options{.epochs = 3, .ema_decay = 0.9, .monitor = Monitor::kAccuracy, .top_k = {1, 2}};
    options.confusion_classes = kClasses;
    options.callbacks.on_evaluation = [&](const Evaluation& found) { seen.push_back(found); };
    Training training(options);
    const TrainingResult result = training.fit();
    ASSERT_EQ(seen.size(), 3U);
    EXPECT_EQ(seen[2].samples, 31);
    EXPECT_EQ(seen[2].epoch, 2);
    ASSERT_EQ(seen[2].accuracies.size(), 2U);
    EXPECT_EQ(seen[2].confusion.sum().item<std::int64_t>(), 31);
    EXPECT_DOUBLE_EQ(seen[2].confusion.trace().item<double>() / 31, seen[2].accuracies[0]);
    EXPECT_TRUE(seen[0].is_best);
    EXPECT_TRUE(result.best_metric.has_value());
    // The module's own weights give something else: the evaluation used the averages.
    training.net->eval();
    const torch::NoGradGuard no_grad;
    double loss = 0;
    for (std::int64_t i = 0; i < 31; ++i) {
      data::Example sample = Sines(31).get(i);
      sample.data = sample.data.unsqueeze(0);
      sample.target = sample.target.unsqueeze(0);
      loss += training.output_of(sample).loss.item<double>();
    }
    EXPECT_NE(loss / 31, seen[2].loss);
    EXPECT_NEAR(loss / 31, seen[2].loss, 0.3);
    EXPECT_EQ(
        training.trainer.evaluate(training.test, [&](data::Example& batch) { return training.output_of(batch); }).loss,
        seen[2].loss);
  });
}

// All other answers are right: 20 of 31.
TEST_P(TrainerMulti, CountsScoresWithANanAsWrongAnswers) {
  run_processes(GetParam(), [](int) {
    const ProcessGroupGuard group;
    TrainerOptions options{.non_finite = std::nullopt, .monitor = Monitor::kAccuracy, .top_k = {1, 2}};
    options.confusion_classes = kClasses;
    Training training(options);
    const auto step = [&](data::Example& batch) -> StepOutput {
      if (training.net->is_training()) return training.output_of(batch);
      const torch::Tensor scores = torch::one_hot(batch.target, kClasses).to(torch::kFloat);
      scores.select(1, 1).masked_fill_(batch.target == 0, std::numeric_limits<double>::quiet_NaN());
      return {torch::nn::functional::cross_entropy(scores, batch.target), scores};
    };
    const TrainingResult result = training.trainer.fit(training.train, training.test, step);
    ASSERT_TRUE(result.evaluation.has_value());
    EXPECT_TRUE(std::isnan(result.evaluation->loss));
    EXPECT_EQ(result.evaluation->accuracies, (std::vector<double>{20.0 / 31, 20.0 / 31}));
    EXPECT_EQ(result.evaluation->confusion.sum().item<std::int64_t>(), 31);
    EXPECT_EQ(result.evaluation->confusion.trace().item<std::int64_t>(), 20);
    EXPECT_EQ(result.best_metric, 20.0 / 31);
  });
}

TEST_P(TrainerMulti, StopsAfterEvaluationsThatAreNotBetterAndFindsTheBest) {
  const SharedScratchFolder folder;
  run_processes(GetParam(), [&](int) {
    const ProcessGroupGuard group;
    TrainerOptions options{.epochs = 50, .monitor = Monitor::kAccuracy, .patience = 2, .checkpoint_dir = folder.path()};
    options.min_delta = 2.0;  // no accuracy is better by that
    Training training(options);
    const TrainingResult result = training.fit();
    EXPECT_EQ(result.end, TrainingEnd::kEarlyStopped);
    EXPECT_EQ(result.epochs, 3);
    EXPECT_TRUE(training.trainer.load_best());
    const Evaluation best =
        training.trainer.evaluate(training.test, [&](data::Example& b) { return training.output_of(b); });
    EXPECT_EQ(best.accuracies[0], *result.best_metric);
  });
}

// The second epoch goes uphill.
TEST(TrainerUnit, EvaluatesTheBestAveragesAfterReadingThem) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  std::vector<double> losses;
  torch::optim::Optimizer* optimizer = nullptr;
  TrainerOptions options{.epochs = 2, .ema_decay = 0.5, .checkpoint_dir = folder.path()};
  options.model_file = folder.path("model.safetensors");
  options.model_metadata = {{"note", "mine"}};
  options.callbacks.on_epoch_end = [&](const EpochReport&) { optimizer->param_groups()[0].options().set_lr(-0.05); };
  options.callbacks.on_evaluation = [&](const Evaluation& found) { losses.push_back(found.loss); };
  Training training(options);
  optimizer = &training.optimizer;
  training.fit();
  ASSERT_EQ(losses.size(), 2U);
  ASSERT_GT(losses[1], losses[0]);
  EXPECT_TRUE(training.trainer.load_best());
  EXPECT_DOUBLE_EQ(
      training.trainer.evaluate(training.test, [&](data::Example& batch) { return training.output_of(batch); }).loss,
      losses[0]);
  const checkpoint::TensorFile file = checkpoint::read_tensor_file(folder.path("model.safetensors"));
  EXPECT_EQ(file.metadata.at("lockstep.epochs"), "1");
  EXPECT_EQ(std::stod(file.metadata.at("lockstep.loss")), losses[0]);
  EXPECT_EQ(file.metadata.at("note"), "mine");
  const checkpoint::StateDict state = checkpoint::state_dict(*training.net);
  ASSERT_EQ(file.tensors.size(), state.size());
  for (const auto& entry : state) EXPECT_TRUE(torch::equal(entry.value(), file.tensors.at(entry.key()))) << entry.key();
}

TEST(TrainerUnit, EvaluatesTheBestAveragesOfLayersThatShareAParameter) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  torch::manual_seed(1);
  const torch::nn::Linear shared(6, 6);
  Net net(shared, shared, torch::nn::Linear(6, kClasses));
  torch::optim::SGD optimizer(distinct_parameters(*net), 0.05);
  data::DataLoader train(Sines(60), {.batch_size = 4});
  data::DataLoader test(Sines(31), {.batch_size = 4, .exact = true});
  Trainer trainer(net, optimizer, {.epochs = 2, .ema_decay = 0.5, .checkpoint_dir = folder.path()});
  const auto step = [&](data::Example& batch) -> StepOutput {
    return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
  };
  const TrainingResult result = trainer.fit(train, test, step);
  ASSERT_TRUE(trainer.load_best());
  EXPECT_DOUBLE_EQ(trainer.evaluate(test, step).loss, *result.best_metric);
}

TEST(TrainerUnit, AddsUpImprovementsOfLessThanMinDelta) {
  const ProcessGroupGuard group;
  for (const auto& [improvement, epochs] : {std::pair(0.4, 6), std::pair(0.1, 3)}) {
    TrainerOptions options{.epochs = 6, .patience = 2};
    options.min_delta = 0.5;
    int evaluations = 0;
    options.callbacks.on_evaluation = [&](const Evaluation&) { ++evaluations; };
    Training training(options);
    const auto step = [&](data::Example& batch) -> StepOutput {
      StepOutput output = training.output_of(batch);
      if (!training.net->is_training()) output.loss = torch::tensor(10.0 - evaluations * improvement);
      return output;
    };
    EXPECT_EQ(training.trainer.fit(training.train, training.test, step).epochs, epochs) << improvement;
  }
}

// As after a signal at the end of the last epoch: the resumed training evaluates it, and makes no step.
TEST(TrainerUnit, ReportsATrainingThatOnlyEvaluates) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  const trainer_detail::TrainCommandOptions options;
  trainer_detail::TrainCommandReport report(options, folder.path(), {}, /*is_newcomer=*/false);
  report.callbacks().on_evaluation(
      {.epoch = 1, .step = 4, .samples = 8, .loss = 0.5, .accuracies = {}, .confusion = {}});
  report.end({.epochs = 2, .steps = 4}, {});
  auto run = report::read_run(folder.path());
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->state, report::RunState::kFinished);
  EXPECT_EQ(run->sessions.size(), 1U);
  EXPECT_EQ(run->sessions[0].first_epoch, 2);
  EXPECT_EQ(run->evaluations.size(), 1U);
  EXPECT_TRUE(std::filesystem::exists(folder.path("report.html")));
}

TEST(TrainerUnit, ReportsTheCorruptPicturesOfATrainingThatFails) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  const trainer_detail::TrainCommandOptions options;
  trainer_detail::TrainCommandReport report(options, folder.path(), {}, /*is_newcomer=*/false);
  report.fail("a disk full of cats", 1, 4,
              {data::CorruptFile{.name = "cat/7.jpg", .reason = "no picture", .times = 1}});
  const auto run = report::read_run(folder.path());
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run.value().state, report::RunState::kFailed);
  ASSERT_EQ(run.value().notes.size(), 1U);
  EXPECT_EQ(run.value().notes[0].text, "corrupt picture: cat/7.jpg: no picture");
}

// 100 of 400 steps are left, of two batches each; the epoch after it has all.
TEST(TrainerUnit, ShowsHowFarAResumedEpochIs) {
  const ScratchFolder folder;
  const ProcessGroupGuard group;
  testing::internal::CaptureStderr();  // no terminal
  testing::internal::CaptureStdout();
  {
    trainer_detail::TrainCommandOptions options;
    options.epochs = 3;
    options.accumulation = 2;
    options.progress_seconds = 0;
    trainer_detail::TrainCommandReport report(options, folder.path(), {}, /*is_newcomer=*/false);
    const auto step = report.callbacks().on_step_end;
    step({.epoch = 1, .step = 701, .batch = 602, .batches = 799, .samples = 8, .loss = torch::tensor(0.5)});
    step({.epoch = 1, .step = 702, .batch = 604, .batches = 799, .samples = 8, .loss = torch::tensor(0.5)});
    step({.epoch = 2, .step = 801, .batch = 2, .batches = 799, .samples = 8, .loss = torch::tensor(0.5)});
  }
  const std::string shown = testing::internal::GetCapturedStdout();
  testing::internal::GetCapturedStderr();
  for (const char* part :
       {"resumed after step 700", "train 2/3: 301/400 (75%)", "train 2/3: 302/400", "train 3/3: 1/400"})
    EXPECT_NE(shown.find(part), std::string::npos) << part << " in: " << shown;
}

TEST(TrainerUnit, LimitsBatches) {
  const ProcessGroupGuard group;
  TrainerOptions options{.epochs = 2, .limit_batches = 3};
  std::vector<std::int64_t> batches;
  options.callbacks.on_step_end = [&](const StepReport& step) { batches.push_back(step.batch * 10 + step.batches); };
  Training training(options);
  const TrainingResult result = training.fit();
  EXPECT_EQ(batches, (std::vector<std::int64_t>{13, 23, 33, 13, 23, 33}));
  EXPECT_EQ(result.evaluation->samples, 12);
}

// An optimizer of the last layer alone: the gradients of the others are not its own.
TEST(TrainerUnit, ClipsTheGradientsThatTheOptimizerHas) {
  const ProcessGroupGuard group;
  const auto train = [](bool frozen) {
    Net net = make_net();
    auto* head = net[3]->as<torch::nn::Linear>();
    for (torch::Tensor& parameter : net->parameters()) parameter.set_requires_grad(!frozen);
    for (torch::Tensor& parameter : head->parameters()) parameter.set_requires_grad(true);
    torch::optim::SGD optimizer(head->parameters(), torch::optim::SGDOptions(0.05));
    data::DataLoader loader(Sines(40), {.batch_size = 4, .shuffle = true, .seed = 3});
    std::vector<double> norms;
    TrainerOptions options{.epochs = 2, .clip_grad_norm = 0.1};
    options.callbacks.on_step_end = [&](const StepReport& step) { norms.push_back(step.gradient_norm); };
    Trainer trainer(net, optimizer, options);
    trainer.fit(loader, [&](data::Example& batch) -> StepOutput {
      return {torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target)};
    });
    return std::pair(net, norms);
  };
  const auto [net, norms] = train(/*frozen=*/false);
  const auto [judge, expected] = train(/*frozen=*/true);
  EXPECT_EQ(norms, expected);
  expect_same_values(*net, *judge, "part of the parameters");
}

}  // namespace
}  // namespace lockstep::test
