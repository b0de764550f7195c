// What `lockstep train` does with good options, and with wrong ones.
#include "train_program.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lockstep/base/fd.h"
#include "lockstep/report/run.h"

namespace lockstep::test {
namespace {

class TrainProgramMulti : public TrainProgram {
 protected:
  // One epoch on one rank, then one on two.
  void expect_log() const {
    auto run = report::read_run(scratch_.path("run"));
    ASSERT_TRUE(run.ok()) << run.status().message();
    EXPECT_EQ(run->epochs.size(), 2U);
    EXPECT_EQ(run->evaluations.size(), 2U);
    EXPECT_EQ(run->steps.at("loss").size(), 9U);
    EXPECT_EQ(run->sessions.back().world_size, 2);
    EXPECT_EQ(run->state, report::RunState::kFinished);
    ASSERT_EQ(run->times.back().ranks.size(), 2U);
    for (const report::RankTimes& rank : run->times.back().ranks) {
      EXPECT_GT(report::scalar(rank.seconds, "compute"), 0);
      EXPECT_GT(report::scalar(rank.seconds, "communication"), 0);
      EXPECT_FALSE(rank.host.empty());
    }
    EXPECT_EQ(run->confusion_classes, 3);
    EXPECT_EQ(run->classes.size(), 3U);
  }
};

TEST_F(TrainProgramMulti, PlansTrainsAndResumesOnAnotherNumberOfRanks) {
  const Finished plan = train({"--dry-run"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  for (const char* part :
       {"parameters, 3 classes", "72 samples of [3, 32, 32]", "24 samples", "6 in an epoch, 12 in 2 epochs"}) {
    EXPECT_NE(plan.out.find(part), std::string::npos) << part << " in: " << plan.out;
  }
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("run")));
  const Finished first = train({"--epochs", "1"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.out.find("epoch 1/1: test loss"), std::string::npos) << first.out;
  EXPECT_TRUE(std::filesystem::exists(scratch_.path("run/report.html")));
  EXPECT_FALSE(std::filesystem::is_empty(scratch_.path("run/tensorboard")));
  const Finished second = train({"--resume"}, 2);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.out.find("epoch 1/2"), std::string::npos) << second.out;
  EXPECT_NE(second.out.find("finished after 2 epochs, 9 steps"), std::string::npos) << second.out;
  EXPECT_NE(second.out.find(" % for communication"), std::string::npos) << second.out;
  EXPECT_NE(second.out.find("resumed after step 6"), std::string::npos) << second.out;
  expect_log();
  const Finished third = train({"--resume"});
  EXPECT_EQ(third.exit_code, 0) << third.err;
  EXPECT_NE(third.out.find("nothing was left to train"), std::string::npos) << third.out;
  expect_log();
}

// The first batch of the evaluation is a corrupt picture alone. It counts for nothing.
TEST_F(TrainProgramMulti, EvaluatesTheGoodPicturesOnly) {
  scratch_.write("project/data/pictures/test/circle/24.ppm", "P6 32 32 255 cut off");
  const Finished finished = train({"--epochs", "1", "--on-corrupt", "skip", "--test-batch-size", "1"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  auto run = report::read_run(scratch_.path("run"));
  ASSERT_TRUE(run.ok()) << run.status().message();
  ASSERT_EQ(run->evaluations.size(), 1U);
  EXPECT_EQ(run->evaluations[0].samples, 23);
}

// No accuracy is better by 2, so the second evaluation ends it.
TEST_F(TrainProgramMulti, StopsEarly) {
  const Finished finished = train({"--epochs", "5", "--limit-batches", "1", "--patience", "1", "--min-delta", "2"}, 2);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.out.find("stopped after 2 epochs: not better in the last 1 evaluation"), std::string::npos)
      << finished.out;
  auto run = report::read_run(scratch_.path("run"));
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->state, report::RunState::kFinished);
  EXPECT_EQ(run->evaluations.size(), 2U);
}

TEST_F(TrainProgramMulti, TriesAFewBatches) {
  const Finished finished = train({"--epochs", "1", "--limit-batches", "2"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.out.find("finished after 1 epoch, 2 steps"), std::string::npos) << finished.out;
}

// An epoch of some seconds, without a terminal.
TEST_F(TrainProgramMulti, PrintsProgressWithinAnEpoch) {
  const Finished finished =
      train({"--model.name", "resnet18", "--epochs", "1", "--batch-size", "2", "--progress-seconds", "1"}, 2);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::size_t line = finished.out.find("train 1/1: ");
  ASSERT_NE(line, std::string::npos) << finished.out;
  EXPECT_LT(line, finished.out.find("epoch 1/1: loss")) << finished.out;
  for (const char* part : {"/18 (", " pictures/s, ", " left", "compute "})
    EXPECT_NE(finished.out.find(part, line), std::string::npos) << part << " in: " << finished.out;
}

// A terminal shows it from the first batch on. What is drawn is read at once: a terminal holds little.
TEST_F(TrainProgramMulti, DrawsProgressOfAnEvaluation) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
  const Fd terminal(ends[0]);
  Fd other_end(ends[1]);
  Process process(words({"--epochs", "1", "--test-batch-size", "8"}),
                  {.environment = {"OMP_NUM_THREADS=1", "TERM=xterm"}, .stderr_fd = other_end.get()});
  other_end.reset();  // else reading does not end with the program
  std::string shown;
  std::array<char, 4096> bytes{};
  for (ssize_t got = 0; (got = ::read(terminal.get(), bytes.data(), bytes.size())) > 0;)
    shown.append(bytes.data(), static_cast<std::size_t>(got));
  EXPECT_EQ(process.finish().exit_code, 0) << shown;
  const std::size_t bar = shown.find("test 1/1 ");
  ASSERT_NE(bar, std::string::npos) << shown;
  EXPECT_NE(shown.find("0/3", bar), std::string::npos) << shown;
  EXPECT_NE(shown.find("test 1/1: loss ", bar), std::string::npos) << shown;
  EXPECT_NE(shown.find(", accuracy ", bar), std::string::npos) << shown;
}

// The weights are those of a checkpoint: of a training with as many classes, and of one with more.
TEST_F(TrainProgramMulti, BeginsWithTheWeightsOfAnotherTraining) {
  ASSERT_EQ(train({"--epochs", "1", "--limit-batches", "1"}).exit_code, 0);
  const std::string weights = scratch_.path("run/checkpoints/step-000000001.ckpt");
  const Finished same = train({"--model.weights", weights, "--dry-run"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.out.find("model.weights"), std::string::npos) << same.out;
  const std::string pictures = project_ + "/data/pictures/";
  for (const char* part : {"train/", "test/"})
    std::filesystem::rename(pictures + part + "cross", pictures + part + "cube");
  const std::string other = "class 1 is 'cross' in the checkpoint, and 'cube' in this training";
  const Finished renamed = train({"--model.weights", weights, "--dry-run"});
  EXPECT_EQ(renamed.exit_code, 0) << renamed.err;
  EXPECT_NE(renamed.out.find("model.weights: " + other), std::string::npos) << renamed.out;
  const Finished kept = train({"--model.weights", weights, "--new-head", "--dry-run"});
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_NE(kept.out.find("all layers fit, so model.new_head leaves none out; " + other), std::string::npos)
      << kept.out;
  expect_error({"--model.weights", weights, "--num-classes", "5", "--dry-run"}, 1,
               {"model.weights: " + weights, "[3, 1024] in the file and [5, 1024] in the model",
                "with model.new_head: true the layer 'classifier.3' starts from new weights"});
  const Finished with_new_head =
      train({"--model.weights", weights, "--num-classes", "5", "--new-head", "--dry-run"}, 2);
  EXPECT_EQ(with_new_head.exit_code, 0) << with_new_head.err;
  EXPECT_NE(with_new_head.out.find("all but 'classifier.3', which starts from new weights"), std::string::npos)
      << with_new_head.out;
  expect_error({"--model.weights", weights, "--model.name", "resnet18", "--new-head", "--dry-run"}, 1,
               {weights, "it is of another model", "missing in the file: conv1.weight"});
  expect_error({"--new-head", "--dry-run"}, 2, {"model.new_head needs model.weights"});
  ASSERT_EQ(
      train({"--output", scratch_.path("averaged"), "--epochs", "1", "--limit-batches", "1", "--ema-decay", "0.5"})
          .exit_code,
      0);
  const Finished averaged =
      train({"--model.weights", scratch_.path("averaged/checkpoints/step-000000001.ckpt"), "--dry-run"});
  EXPECT_NE(averaged.out.find("model.weights: the averages of that training"), std::string::npos) << averaged.out;
}

// Its output goes to a program that reads one line.
TEST_F(TrainProgramMulti, GoesOnWhenNobodyReadsItsOutputAnyMore) {
  std::string line;
  for (const std::string& word : words({"--epochs", "2"})) line += "'" + word + "' ";
  Process process({"bash", "-o", "pipefail", "-c", line + "| head -n 1"}, {.environment = {"OMP_NUM_THREADS=1"}});
  const Finished finished = process.finish(std::chrono::seconds(100));
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_TRUE(std::filesystem::exists(scratch_.path("run/report.html")));
}

TEST_F(TrainProgramMulti, SaysWhatIsWrong) {
  expect_error({"--lrr", "1"}, 2, {"--lrr", "--lr"});  // further errors of a configuration: TrainOptions
  scratch_.write("file", "in the way");
  expect_error({"--output", scratch_.path("file/run")}, 1, {"output: ", scratch_.path("file/run"), "Not a directory"});
  expect_error({"--output", scratch_.path("diverges"), "--lr", "1e30"}, 1,
               {"the loss of rank 0 is ", "A smaller learning rate"});
  expect_error({"--transforms", "Resize(32)", "--dry-run"}, 1,
               {"data.transforms: they give numbers of type Byte; add ToTensor"});
  expect_error({"--test-transforms", "Resize(32)", "--dry-run"}, 1, {"data.test_transforms: they give numbers"});
  expect_error({"--model.name", "vit_tiny", "--image-size", "32", "--patch-size", "8", "--test-transforms",
                "Resize(64),ToTensor", "--dry-run"},
               1, {"vit_tiny cannot take the samples of data.test, [3, 64, 64]"});
  expect_error({"--num-classes", "2"}, 1, {"has 2 classes, but the data has 3 (circle ... square)"});
  expect_error({"--model.name", "mnist_net"}, 1, {"mnist_net cannot take the data's samples", "[3, 32, 32]"});
  expect_error({"--model.name", "custom", "--shared-object", LOCKSTEP_PROGRAM}, 1, {"model.shared_object", "LibTorch"});
  expect_error({"--device", "cuda", "--dry-run"}, 1,
               {"trainer.device: cuda, but this process sees no GPU", "CUDA_VISIBLE_DEVICES is ''"});
  expect_error({"--format", "pack"}, 1, {"data.train: ", "found a folder"});
  scratch_.write("project/data/pictures/train/cross/00.ppm", "no picture");
  expect_error({"--dry-run", "--train", project_ + "/data/pictures/test", "--test", project_ + "/data"}, 1,
               {"data.test", "classes"});
  std::filesystem::create_directory(project_ + "/data/pictures/train/hollow");
  expect_error({"--dry-run"}, 1, {"data.train", "hollow", "set allow_empty"});
  expect_error({"--dry-run", "--allow-empty"}, 1, {"data.test", "has 3 classes", "has 4"});
  for (const char* name : {"circle", "cross", "hollow", "square"})
    std::filesystem::create_directories(scratch_.path("empty/") + name);
  expect_error({"--dry-run", "--allow-empty", "--test", scratch_.path("empty")}, 1,
               {"data.test: there are no samples"});
  expect_error({"--dry-run", "--allow-empty", "--train", scratch_.path("empty"), "--test", scratch_.path("empty")}, 1,
               {"data.train: there are no samples"});
  std::filesystem::create_directory(project_ + "/data/pictures/test/hollow");
  EXPECT_NE(train({"--dry-run", "--allow-empty"}).out.find("4 classes"), std::string::npos);
  for (const char* part : {"train", "test"}) std::filesystem::remove(project_ + "/data/pictures/" + part + "/hollow");
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("run")));
  expect_error({"--epochs", "1", "--batch-size", "72"}, 1, {"cross/00.ppm", "set on_corrupt"});  // in the first step
  auto run = report::read_run(scratch_.path("run"));
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->state, report::RunState::kFailed);
  EXPECT_TRUE(std::filesystem::exists(scratch_.path("run/report.html")));
  // The next failure of this kind takes its place.
  expect_error({"--epochs", "1", "--batch-size", "72"}, 1, {"cross/00.ppm"});
  run = report::read_run(scratch_.path("run"));
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->sessions.size(), 1U);
  EXPECT_NE(train({"--epochs", "1", "--on-corrupt", "replace"}).out.find("corrupt picture: "), std::string::npos);
}

TEST_F(TrainProgramMulti, EndsAfterTheStepWhenAsked) {
  Process process({LOCKSTEP_PROGRAM, "train", "--config", scratch_.path("config.yaml"), "--epochs", "100000"},
                  {.environment = {"OMP_NUM_THREADS=1"}});
  ASSERT_TRUE(
      wait_for([&] { return process.out_so_far().find("epoch 1/") != std::string::npos; }, std::chrono::seconds(100)))
      << process.err_so_far();
  ::kill(process.pid(), SIGTERM);
  const Finished finished = process.finish(std::chrono::seconds(100));
  EXPECT_EQ(finished.exit_code, 128 + SIGTERM) << finished.err;
  EXPECT_NE(finished.out.find("interrupted at step"), std::string::npos) << finished.out;
  EXPECT_TRUE(std::filesystem::exists(scratch_.path("run/checkpoints")));
}

}  // namespace
}  // namespace lockstep::test
