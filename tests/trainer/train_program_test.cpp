// `lockstep train`, as a program, on the pictures of `lockstep new`.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "cli/new_project.h"
#include "lockstep/report/run.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

class TrainProgramMulti : public testing::Test {
 protected:
  TrainProgramMulti() {
    const Status made = cli::new_project(cli::project_templates(fs::path(LOCKSTEP_PROGRAM).parent_path()), project_);
    EXPECT_TRUE(made.ok()) << made.message();
    write("");
  }

  // A configuration for a small model; `more` are further lines.
  void write(const std::string& more) {
    scratch_.write("config.yaml",
                   "output: " + scratch_.path("run") + "\ndata:\n  train: " + project_ +
                       "/data/pictures/train\n  test: " + project_ +
                       "/data/pictures/test\n  transforms: [RandomHorizontalFlip, ToTensor]\n  workers: 1\n"
                       "model:\n  name: mobilenet_v3_small\n  small_images: true\n"
                       "optimizer:\n  lr: 0.01\ntrainer:\n  epochs: 2\n  batch_size: 12\n" +
                       more);
  }
  Finished train(const std::vector<std::string>& options, int ranks = 1) const {
    std::vector<std::string> words{LOCKSTEP_PROGRAM};
    if (ranks > 1)
      words.insert(words.end(), {"run", "--standalone", "--nproc-per-node", std::to_string(ranks), LOCKSTEP_PROGRAM});
    words.insert(words.end(), {"train", "--config", scratch_.path("config.yaml")});
    words.insert(words.end(), options.begin(), options.end());
    Process process(words, {.environment = {"OMP_NUM_THREADS=1"}});
    return process.finish(std::chrono::seconds(100));
  }
  void expect_error(const std::vector<std::string>& options, int code, const std::vector<std::string>& parts) const {
    const Finished finished = train(options);
    EXPECT_EQ(finished.exit_code, code) << finished.err;
    for (const std::string& part : parts)
      EXPECT_NE(finished.err.find(part), std::string::npos) << part << " in: " << finished.err;
  }

  // One epoch on one rank, then one on two.
  void expect_log() const {
    auto run = report::read_run(scratch_.path("run"));
    ASSERT_TRUE(run.ok()) << run.status().message();
    EXPECT_EQ(run->epochs.size(), 2U);
    EXPECT_EQ(run->evaluations.size(), 2U);
    EXPECT_EQ(run->steps.at("loss").size(), 9U);
    EXPECT_EQ(run->sessions.back().world_size, 2);
    EXPECT_EQ(run->state, report::RunState::kFinished);
    EXPECT_EQ(run->times.back().ranks.size(), 2U);
    EXPECT_EQ(run->confusion_classes, 3);
    EXPECT_EQ(run->classes.size(), 3U);
  }

  ScratchFolder scratch_;
  std::string project_ = scratch_.path("project");
};

TEST_F(TrainProgramMulti, PlansTrainsAndResumesOnAnotherNumberOfRanks) {
  const Finished plan = train({"--dry-run"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  for (const char* part :
       {"parameters, 3 classes", "72 samples of [3, 32, 32]", "24 samples", "6 in an epoch, 12 in 2 epochs"}) {
    EXPECT_NE(plan.out.find(part), std::string::npos) << part << " in: " << plan.out;
  }
  EXPECT_FALSE(fs::exists(scratch_.path("run")));
  const Finished first = train({"--epochs", "1"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.out.find("epoch 1/1: test loss"), std::string::npos) << first.out;
  EXPECT_TRUE(fs::exists(scratch_.path("run/report.html")));
  EXPECT_FALSE(fs::is_empty(scratch_.path("run/tensorboard")));
  const Finished second = train({"--resume"}, 2);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.out.find("epoch 1/2"), std::string::npos) << second.out;
  EXPECT_NE(second.out.find("finished after 2 epochs, 9 steps"), std::string::npos) << second.out;
  expect_log();
}

TEST_F(TrainProgramMulti, SaysWhatIsWrong) {
  expect_error({"--lrr", "1"}, 2, {"--lrr", "--lr"});
  expect_error({"--train", "/nowhere"}, 2, {"data.train: /nowhere is not there"});
  expect_error({"--transforms", "ToTenser"}, 2, {"data.transforms", "no transform 'ToTenser'", "ToTensor"});
  expect_error({"--num-classes", "2"}, 1, {"has 2 classes, but the data has 3 (circle ... square)"});
  expect_error({"--name", "mnist_net"}, 2, {"--name"});  // of several sections
  expect_error({"--model.name", "mnist_net"}, 1, {"mnist_net cannot take the data's samples", "[3, 32, 32]"});
  expect_error({"--model.name", "custom", "--library", LOCKSTEP_PROGRAM}, 1, {"model.library", "LibTorch"});
  write("trainre:\n  epochs: 3\n");
  expect_error({}, 2, {"trainre", "trainer"});
  scratch_.write("project/data/pictures/train/cross/00.ppm", "no picture");
  write("");
  expect_error({"--dry-run", "--train", project_ + "/data/pictures/test", "--test", project_ + "/data"}, 1,
               {"data.test", "classes"});
  expect_error({"--epochs", "1"}, 1, {"cross/00.ppm"});
  EXPECT_NE(train({"--epochs", "1", "--on-corrupt", "replace"}).out.find("corrupt picture: "), std::string::npos);
}

TEST_F(TrainProgramMulti, EndsAfterTheStepWhenAsked) {
  Process process({LOCKSTEP_PROGRAM, "train", "--config", scratch_.path("config.yaml"), "--epochs", "100000"},
                  {.environment = {"OMP_NUM_THREADS=1"}});
  ASSERT_TRUE(
      wait_for([&] { return process.out_so_far().find("epoch 1/") != std::string::npos; }, std::chrono::seconds(60)))
      << process.err_so_far();
  ::kill(process.pid(), SIGTERM);
  const Finished finished = process.finish(std::chrono::seconds(60));
  EXPECT_EQ(finished.exit_code, 128 + SIGTERM) << finished.err;
  EXPECT_NE(finished.out.find("interrupted at step"), std::string::npos) << finished.out;
  EXPECT_TRUE(fs::exists(scratch_.path("run/checkpoints")));
}

}  // namespace
}  // namespace lockstep::test
