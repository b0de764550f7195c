// What goes wrong while `lockstep train` runs: it says what to do, leaves nothing broken, and goes on afterwards.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <set>

#include "lockstep/report/run_log.h"
#include "nn/error_texts.h"
#include "support/full_disk.h"
#include "support/process_ranks.h"
#include "support/read_file.h"
#include "train_program.h"

namespace lockstep::test {
namespace {

class TrainProgramFault : public TrainProgram {
 protected:
  // The ranks among the descendants of a process.
  static std::set<pid_t> ranks_of(pid_t launcher) {
    std::set<pid_t> ranks;
    for (const pid_t child : children_of(launcher)) {
      if (read_file("/proc/" + std::to_string(child) + "/comm") == "lockstep-train\n") ranks.insert(child);
      ranks.merge(ranks_of(child));
    }
    return ranks;
  }
};

TEST_F(TrainProgramFault, FullDiskInTheMiddle) {
  const SmallDisk disk(96U << 20);
  {
    Process process(words({"--output", disk.path("run"), "--epochs", "100000"}),
                    {.environment = {"OMP_NUM_THREADS=1"}});
    ASSERT_TRUE(wait_for([&] { return process.out_so_far().find("test loss") != std::string::npos; },
                         std::chrono::seconds(100)))
        << process.err_so_far();
    disk.fill();
    const Finished finished = process.finish(std::chrono::seconds(100));
    EXPECT_EQ(finished.exit_code, 1) << finished.out;
    expect_in(finished.err, {"No space left on device", disk.path("run/checkpoints")});
  }
  disk.resize(192U << 20);
  const Finished resumed = train({"--output", disk.path("run"), "--resume", "--epochs", "1"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_in(resumed.out, {"finished after "});
}

// The first of two steps is of a large model, and has begun: the second is not made.
TEST_F(TrainProgramFault, InterruptInTheFirstBatch) {
  const auto before =
      ::signal(SIGINT, SIG_DFL);  // a shell's job in the background ignores it, and so would the program
  Process process(words({"--model.name", "resnet18", "--batch-size", "36"}), {.environment = {"OMP_NUM_THREADS=1"}});
  ::signal(SIGINT, before);
  ASSERT_TRUE(
      wait_for([&] { return takes_signal(process.pid(), SIGINT) || process.ended(); }, std::chrono::seconds(100)));
  ::kill(process.pid(), SIGINT);
  const Finished finished = process.finish(std::chrono::seconds(100));
  EXPECT_EQ(finished.exit_code, 128 + SIGINT) << finished.err;
  expect_in(finished.out, {"interrupted at step "});
  EXPECT_EQ(finished.out.find("test loss"), std::string::npos) << finished.out;
  const Finished resumed = train({"--model.name", "resnet18", "--batch-size", "36", "--resume", "--epochs", "1"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

// A terminal sends the signal to all processes of the job.
TEST_F(TrainProgramFault, InterruptOfTwoRanksInTheFirstBatch) {
  const std::vector<std::string> options{"--model.name", "resnet18", "--batch-size", "12", "--limit-batches", "2"};
  const auto before = ::signal(SIGINT, SIG_DFL);
  Process process(words(options, 2), {.environment = {"OMP_NUM_THREADS=1"}});
  ::signal(SIGINT, before);
  std::set<pid_t> ranks;
  ASSERT_TRUE(wait_for(
      [&] {
        ranks = ranks_of(process.pid());
        std::erase_if(ranks, [](pid_t rank) { return !takes_signal(rank, SIGINT); });
        return ranks.size() == 2 || process.ended();
      },
      std::chrono::seconds(100)));
  for (const pid_t rank : ranks) ::kill(rank, SIGINT);
  ::kill(process.pid(), SIGINT);
  const Finished finished = process.finish(std::chrono::seconds(100));
  EXPECT_EQ(finished.exit_code, 128 + SIGINT) << finished.err;
  expect_in(finished.out, {"interrupted at step "});
  EXPECT_EQ(finished.out.find("test loss"), std::string::npos) << finished.out;
  std::vector<std::string> again = options;
  again.insert(again.end(), {"--resume", "--epochs", "1"});
  const Finished resumed = train(again, 2);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_in(resumed.out, {"finished after 1 epoch, 2 steps"});
  // The signal may come before the first step has begun: then there is nothing to go on from.
  const bool stepped = finished.out.find("interrupted at step 0") == std::string::npos;
  EXPECT_EQ(resumed.out.find("resumed after step ") != std::string::npos, stepped) << finished.out << resumed.out;
}

TEST_F(TrainProgramFault, ResumesOnlyTheModelAndTheDataThatWereSaved) {
  ASSERT_EQ(train({"--epochs", "1"}).exit_code, 0);
  const std::string log = read_file(scratch_.path("run/run.jsonl"));
  const auto resume = [&](std::vector<std::string> options, const std::vector<std::string>& parts) {
    options.insert(options.end(), {"--resume"});
    const Finished finished = train(options, 2);
    EXPECT_EQ(finished.exit_code, 1) << finished.out;
    expect_in(finished.err, parts);
  };
  resume({"--model.name", "resnet18"}, {"cannot resume", " more; unexpected in the file: ", "that were saved"});
  resume({"--num-classes", "5"}, {"cannot resume", "[5, ", "[3, "});
  resume({"--optimizer.name", "adam"}, {"cannot resume", "optimizer"});
  resume({"--trainer.seed", "7"}, {"seed"});
  const auto rename = [&](const std::string& from, const std::string& to) {
    for (const char* part : {"data/pictures/train", "data/pictures/test"}) {
      const std::filesystem::path folder = std::filesystem::path(project_) / part;
      std::filesystem::rename(folder / from, folder / to);
    }
  };
  rename("square", "triangle");
  resume({}, {"cannot resume", "class 2 is 'square' in the checkpoint, and 'triangle' in this training",
              "classes that were saved"});
  rename("triangle", "square");
  // None of them has changed the run.
  EXPECT_EQ(read_file(scratch_.path("run/run.jsonl")), log);
  EXPECT_EQ(train({"--resume"}).exit_code, 0);
}

// What a training would find at its start, a dry run finds too. It leaves nothing.
TEST_F(TrainProgramFault, DryRunFindsAnOutputThatCannotBeWritten) {
  scratch_.write("file", "in the way");
  scratch_.write("theirs/run.jsonl", "no log");
  scratch_.write("taken/checkpoints", "no folder");
  scratch_.write("shown/tensorboard", "no folder");
  auto open = report::RunLog::open(scratch_.path("used"));
  ASSERT_TRUE(open.ok()) << open.status().message();
  const auto plan = [&](const std::string& output, std::vector<std::string> parts) {
    parts.insert(parts.end(), {"output: ", scratch_.path(output)});
    expect_error({"--output", scratch_.path(output), "--dry-run"}, 1, parts);
  };
  plan("file/run", {"Not a directory"});
  plan("theirs", {"run.jsonl: expected a log of JSON lines"});
  plan("taken", {"taken/checkpoints", "Not a directory"});
  plan("shown", {"shown/tensorboard", "Not a directory"});
  plan("used", {"another process writes this log"});
  EXPECT_EQ(read_file(scratch_.path("theirs/run.jsonl")), "no log");
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("taken/run.jsonl")));
  EXPECT_EQ(train({"--output", scratch_.path("new/deep/run"), "--dry-run"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("new")));
}

// Classes are compared by name: as many, but others.
TEST_F(TrainProgramFault, ClassesThatDoNotMatch) {
  const std::filesystem::path other = scratch_.path("other");
  std::filesystem::copy(project_ + "/data/pictures/test", other, std::filesystem::copy_options::recursive);
  std::filesystem::rename(other / "square", other / "triangle");
  expect_error({"--test", other}, 1, {"data.test", "triangle", "square"});
  std::filesystem::remove_all(other / "triangle");
  expect_error({"--test", other}, 1, {"data.test", "has 2 classes", "has 3"});
  ASSERT_EQ(train({"--epochs", "1", "--num-classes", "4"}).exit_code, 0);  // more than the data has
}

// Its shape and that of the model are looked at before the training.
TEST_F(TrainProgramFault, TheFirstPictureIsCorrupt) {
  scratch_.write("project/data/pictures/train/circle/00.ppm", "P6 32 32 255 cut off");
  for (const char* policy : {"replace", "skip"}) {
    const Finished finished = train({"--epochs", "1", "--on-corrupt", policy}, 2);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    expect_in(finished.out, {"finished after 1 epoch, 3 steps", "circle/00.ppm"});
  }
}

// One among many: it is named, once, and the ranks stay in step.
TEST_F(TrainProgramFault, OneCorruptPictureInMany) {
  const std::filesystem::path many = std::filesystem::path(project_) / "data/pictures/train/circle";
  for (int i = 0; i < 100; ++i)
    std::filesystem::create_hard_link(many / "00.ppm", many / ("more" + std::to_string(i) + ".ppm"));
  scratch_.write("project/data/pictures/train/circle/more50x.ppm", "P6 32 32 255 cut off");
  const std::vector<std::string> options{"--epochs", "1", "--batch-size", "16"};
  const auto with = [&](const std::string& policy) {
    std::vector<std::string> all = options;
    all.insert(all.end(), {"--on-corrupt", policy});
    return train(all, 2);
  };
  const Finished raised = with("raise");
  EXPECT_EQ(raised.exit_code, 1) << raised.out;
  expect_in(raised.err, {"circle/more50x.ppm", "failed first"});
  for (const char* policy : {"replace", "skip"}) {
    const Finished finished = with(policy);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    expect_in(finished.out, {"finished after 1 epoch, "});
    const std::size_t named = finished.out.find("corrupt picture: " + (many / "more50x.ppm").native());
    EXPECT_NE(named, std::string::npos) << finished.out;  // whichever rank had it
    EXPECT_EQ(finished.out.find("corrupt picture: ", named + 1), std::string::npos) << finished.out;
    expect_in(read_file(scratch_.path("run/report.html")), {"corrupt picture: ", "more50x.ppm"});
  }
}

}  // namespace
}  // namespace lockstep::test
