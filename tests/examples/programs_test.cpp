// The small programs under `lockstep run`: the tutorial's, those about process groups, and those about training.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#ifdef LOCKSTEP_PARITY_SCRIPTS
#include "support/python/python.h"
#endif
#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using Lines = std::vector<std::string>;

// The lines that the ranks printed, sorted, without the launcher's prefix.
Lines run_example(const std::string& program, int ranks, const Lines& arguments = {}) {
  Lines command{LOCKSTEP_PROGRAM,      "run",
                "--standalone",        "--nproc-per-node",
                std::to_string(ranks), LOCKSTEP_EXAMPLES_FOLDER "/" + program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const Finished finished = run_program(command);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  Lines lines;
  std::istringstream stream(finished.out);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t start = line.find("Rank ");
    if (start != std::string::npos) lines.push_back(line.substr(start));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(TutorialMulti, PingBlocking) {
  EXPECT_EQ(run_example("tutorial_blocking_ping", 2), (Lines{"Rank 0 has data 1", "Rank 1 has data 1"}));
}

TEST(TutorialMulti, PingWithoutBlocking) {
  EXPECT_EQ(run_example("tutorial_nonblocking_ping", 2),
            (Lines{"Rank 0 has data 1", "Rank 0 started sending", "Rank 1 has data 1", "Rank 1 started receiving"}));
}

TEST(TutorialMulti, GroupOfTwoInAWorldOfFour) {
  EXPECT_EQ(run_example("tutorial_group_all_reduce", 4),
            (Lines{"Rank 0 has data 2", "Rank 1 has data 2", "Rank 2 has data 1", "Rank 3 has data 1"}));
}

TEST(TutorialMulti, ReduceDoesNotChangeOtherRanks) {
  EXPECT_EQ(run_example("tutorial_reduce", 3), (Lines{"Rank 0 has data 6", "Rank 1 has data 2", "Rank 2 has data 3"}));
}

TEST(TutorialMulti, GatherOfUnknownShapes) {
  EXPECT_EQ(run_example("tutorial_gather_shapes", 2),
            (Lines{"Rank 0 has shapes [1, 2][2, 2]", "Rank 1 has shapes [1, 2][2, 2]"}));
}

// The program itself checks that all models are equal at the end.
TEST(TutorialMulti, AverageGradientsByHand) {
  const Lines lines = run_example("tutorial_average_gradients", 2, {LOCKSTEP_FASHION_MNIST, "3"});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].rfind("Rank 1, epoch 0: 2.", 0), 0U) << lines[1];
}

TEST(DataParallelExample, SplitsAndTrains) {
  const Finished finished = run_program({LOCKSTEP_EXAMPLES_FOLDER "/data_parallel"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.out.rfind("30 inputs: 30\n30 inputs: 15+15\n30 inputs: 10+10+10\n31 inputs: 11+11+9\n", 0), 0U)
      << finished.out;
  EXPECT_NE(finished.out.find("the same weights: yes\n"), std::string::npos) << finished.out;
}

TEST(DdpExamplesMulti, HooksSendLess) {
  const Lines lines = run_example("ddp_hooks", 2, {"25"});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[2].rfind("Rank 0: the all-reduce sends 559168 bytes per step, loss ", 0), 0U) << lines[2];
  EXPECT_EQ(lines[1].rfind("Rank 0: bfloat16 sends 279584 bytes per step, loss ", 0), 0U) << lines[1];
  EXPECT_EQ(lines[0].rfind("Rank 0: PowerSGD sends 12480 bytes per step, loss ", 0), 0U) << lines[0];
}

TEST(DdpExamplesMulti, HelpersInACarefulLoop) {
  const Lines lines = run_example("ddp_helpers", 3, {"5"});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].rfind("Rank 0: error ", 0), 0U) << lines[0];
}

TEST(DdpExamplesMulti, RanksWithDifferentNumbersOfBatches) {
  const std::string same = " batches, and has the weights of all";
  EXPECT_EQ(run_example("ddp_uneven", 3),
            (Lines{"Rank 0 had 3" + same, "Rank 0 stopped with the first after 3" + same, "Rank 1 had 4" + same,
                   "Rank 1 stopped with the first after 3" + same, "Rank 2 had 5" + same,
                   "Rank 2 stopped with the first after 3" + same}));
}

TEST(DdpExamplesMulti, TwoModelsInOneLoop) {
  EXPECT_EQ(run_example("ddp_gan", 2), (Lines{"Rank 0 has the generator of all ranks, which has found the mean",
                                              "Rank 1 has the generator of all ranks, which has found the mean"}));
}

TEST(DdpExamplesMulti, PrecisionsAndWhatTheySend) {
  const Lines lines = run_example("ddp_precision", 2, {"5"});
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0].rfind("Rank 0: autocast sends 16768 bytes per step, loss 0.", 0), 0U) << lines[0];
  EXPECT_EQ(lines[1].rfind("Rank 0: bfloat16 with float masters sends 8384 bytes per step, loss 0.", 0), 0U)
      << lines[1];
  EXPECT_EQ(lines[2].rfind("Rank 0: float sends 16768 bytes per step, loss 0.", 0), 0U) << lines[2];
  EXPECT_EQ(lines[3].rfind("Rank 0: half with a scaled loss sends 16768 bytes per step, loss 0.", 0), 0U) << lines[3];
}

TEST(ProcessGroupExamplesMulti, SplitIntoRowsAndColumns) {
  EXPECT_EQ(run_example("groups_split", 4),
            (Lines{"Rank 0 has 1 in its row, 2 in its column", "Rank 1 has 1 in its row, 4 in its column",
                   "Rank 2 has 5 in its row, 2 in its column", "Rank 3 has 5 in its row, 4 in its column"}));
}

TEST(ProcessGroupExamplesMulti, MeshOfReplicasAndParts) {
  EXPECT_EQ(run_example("groups_mesh", 4),
            (Lines{"Rank 0 is part 0 of replica 0: outputs 0 and 8, mean over replicas 6",
                   "Rank 1 is part 1 of replica 0: outputs 0 and 8, mean over replicas 6",
                   "Rank 2 is part 0 of replica 1: outputs 4 and 12, mean over replicas 6",
                   "Rank 3 is part 1 of replica 1: outputs 4 and 12, mean over replicas 6"}));
}

TEST(ProcessGroupExamplesMulti, TasksForAnyReadyRank) {
  EXPECT_EQ(run_example("groups_any_source", 3), (Lines{"Rank 0 has the sum of squares 285"}));
}

TEST(ProcessGroupExamplesMulti, RingOfBatches) {
  EXPECT_EQ(run_example("groups_batch_ring", 3),
            (Lines{"Rank 0 has data 6", "Rank 1 has data 6", "Rank 2 has data 6"}));
}

// Two of its four ranks kill themselves.
TEST(ProcessGroupsExamplesFault, SurvivorsGoOn) {
  const Finished finished = run_program({LOCKSTEP_EXAMPLES_FOLDER "/groups_reconfigure"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  for (const char* line : {"Step 2: the sum over 4 ranks is 4\n", "Step 4: the sum over 3 ranks is 3\n",
                           "Step 7: the sum over 2 ranks is 2\n", "Step 8: the sum over 2 ranks is 2\n",
                           "2 ranks were killed, and 0 have failed\n"}) {
    EXPECT_NE(finished.out.find(line), std::string::npos) << finished.out;
  }
}

TEST(SurviveExampleFault, ReachesTheWeightsOfAQuietRun) {
  const std::string program = LOCKSTEP_EXAMPLES_FOLDER "/survive";
  const Finished quiet = run_program({LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "4", program});
  const Finished survived = run_program({LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "4", "--min-workers", "2",
                                         "--newcomers", "2", program, "60:0", "130:2"});
  EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_EQ(survived.exit_code, 0) << survived.err;
  for (const char* line : {"rank 0 failed: signal SIGKILL (9)\n", "rank 2 failed: signal SIGKILL (9)\n"}) {
    EXPECT_NE(survived.err.find(line), std::string::npos) << survived.err;
  }
  EXPECT_EQ(quiet.out.rfind("[rank 0]: 200 steps, 4 ranks at the end. Digest of the weights: ", 0), 0U) << quiet.out;
  EXPECT_EQ(survived.out, quiet.out);
}

TEST(ProcessGroupExamplesMulti, StoreWithoutAWorld) {
  const ScratchFolder folder;
  EXPECT_EQ(run_example("groups_store", 3, {folder.path("store"), "3"}),
            (Lines{"Rank 0 reads hello", "Rank 1 reads hello", "Rank 2 reads hello"}));
}

TEST(TrainingExamplesMulti, SynchronisedBatchNorm) {
  EXPECT_EQ(run_example("sync_batch_norm_train", 2),
            (Lines{"Rank 0 has the running means of all ranks", "Rank 1 has the running means of all ranks"}));
}

// The ranks have different numbers of batches.
TEST(TrainingExamplesMulti, AnySampleOfAnIterable) {
  for (const char* workers : {"0", "1"}) {
    EXPECT_EQ(run_example("any_sample_train", 3, {workers}),
              (Lines{"Rank 0 has read 165 sentences", "Rank 0: all have read 385 sentences",
                     "Rank 1 has read 95 sentences", "Rank 2 has read 125 sentences"}));
  }
}

TEST(TrainingExamplesMulti, ShardedOptimizer) {
  const ScratchFolder folder;
  EXPECT_EQ(run_example("sharded_optimizer_train", 2, {folder.path("optimizer.pt")}),
            (Lines{"Rank 0 keeps 50 % of Adam's state", "Rank 1 keeps 50 % of Adam's state"}));
}

TEST(TrainingExamplesMulti, SharedStep) {
  const ScratchFolder folder;
  EXPECT_EQ(run_example("shared_step_train", 2, {folder.path("optimizer.pt")}),
            (Lines{"Rank 0: 20 steps, the plain AdamW has the same weights",
                   "Rank 1: 20 steps, the plain AdamW has the same weights"}));
}

TEST(TrainingExamplesMulti, WarmUpAndCosine) {
  const Lines lines = run_example("schedules_train", 2, {LOCKSTEP_FASHION_MNIST, "2", "1280"});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("Rank 0, epoch 0: rate 0.0"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("epoch 1: rate 0.0000, test loss "), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find("top-1 "), std::string::npos) << lines[1];
}

// A loop by hand logs what the page is made of.
TEST(TrainingExamplesMulti, ReportOfATraining) {
  const ScratchFolder folder;
  run_example("report_train", 2, {folder.path("run"), "2", "1280", LOCKSTEP_FASHION_MNIST});
  const Finished made = run_program({LOCKSTEP_PROGRAM, "report", folder.path("run")});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  const std::string page = read_file(folder.path("run/report.html"));
  for (const char* part : {"Fashion-MNIST", "finished", "2 processes on", "Best accuracy", "Loss, each step",
                           "Where the time went", "Confusion, epoch 2", "Ankle boot"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

TEST(PretrainedExample, NamesWhatIsWrong) {
  const auto error_of = [](const Lines& arguments) {
    Lines command{LOCKSTEP_EXAMPLES_FOLDER "/pretrained"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Finished finished = run_program(command);
    EXPECT_NE(finished.exit_code, 0);
    return finished.err;
  };
  EXPECT_NE(error_of({}).find("MODEL WEIGHTS PICTURE"), std::string::npos);
  EXPECT_NE(error_of({"resnet18", "/no/such/file", "picture.png"}).find("/no/such/file"), std::string::npos);
}

#ifdef LOCKSTEP_PARITY_SCRIPTS

// Python makes the model and reads the result. 6 s of a core.
TEST(ScriptedExampleParity, TrainsWhatPythonMakesAndReads) {
  const ScratchFolder folder;
  const std::string script = "../../examples/scripted/model.py";
  run_python(script, {"make", folder.path("net.pt")});
  EXPECT_EQ(run_example("scripted_train", 2, {folder.path("net.pt"), folder.path("trained")}),
            (Lines{"Rank 0: has learned it"}));
  EXPECT_EQ(run_python(script, {"check", folder.path("net.pt"), folder.path("trained")}),
            "classes of the four quadrants: [1, 0, 1, 0]\n");
}
// Both print "class N: LOGIT", five times.
TEST(PretrainedExampleParity, PrintsPythonsLogits) {
  const ScratchFolder folder;
  std::istringstream python(run_python("classify.py", {folder.path("weights.pt"), folder.path("picture.ppm")}));
  const Finished finished = run_program({LOCKSTEP_EXAMPLES_FOLDER "/pretrained", "mobilenet_v3_small",
                                         folder.path("weights.pt"), folder.path("picture.ppm")});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  std::istringstream ours(finished.out);
  std::string word;
  std::string label;
  double logit = 0;
  for (int i = 0; i < 5; ++i) {
    std::string other_label;
    double other_logit = 1e9;
    ours >> word >> label >> logit;
    python >> word >> other_label >> other_logit;
    EXPECT_EQ(label, other_label);
    EXPECT_NEAR(logit, other_logit, 2e-4);
  }
}
#endif

}  // namespace
}  // namespace lockstep::test
