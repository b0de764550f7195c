// Trainings under `lockstep run --min-workers`: workers die, and the others go on or get newcomers.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using Words = std::vector<std::string>;

// `timeout`: the world's, in seconds.
Words launch(int world, const Words& options, const std::string& folder, const Words& events, int timeout = 60) {
  Words words{LOCKSTEP_PROGRAM, "run", "--nproc-per-node", std::to_string(world)};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {LOCKSTEP_LAUNCHED_TRAINING, folder, std::to_string(timeout)});
  words.insert(words.end(), events.begin(), events.end());
  return words;
}

// The bytes that each rank has at the end of a training without a death.
const std::string& quiet_weights(int world) {
  static std::map<int, std::string> known;
  std::string& weights = known[world];
  if (!weights.empty()) return weights;
  const ScratchFolder folder;
  const Finished end = run_program(launch(world, {}, folder.path().native(), {}));
  EXPECT_EQ(end.exit_code, 0) << end.err;
  weights = read_file(folder.path("weights.0"));
  EXPECT_FALSE(weights.empty());
  return weights;
}

class LaunchedTrainingFault : public testing::Test {
 protected:
  // Runs it to its end, and expects nothing to be left.
  Finished run(int world, const Words& options, const Words& events, int timeout = 60) const {
    for (const auto& file : std::filesystem::directory_iterator(folder_.path())) std::filesystem::remove(file);
    Process job(launch(world, options, folder_.path().native(), events, timeout));
    Finished end = job.finish();
    EXPECT_TRUE(job.wait_until_no_descendant());
    return end;
  }
  std::string weights(int rank) const { return read_file(folder_.path("weights." + std::to_string(rank))); }
  // All ranks have the weights of a quiet training, bit for bit.
  void expect_quiet_weights(int world) const {
    for (int rank = 0; rank < world; ++rank) EXPECT_TRUE(weights(rank) == quiet_weights(world)) << rank;
  }
  // How many processes have had this rank.
  long lives(int rank) const {
    const std::string pids = read_file(folder_.path("pid." + std::to_string(rank)));
    return std::count(pids.begin(), pids.end(), '\n');
  }

  const ScratchFolder folder_;
};

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Case {
  int world;
  Words options;
  Words events;
};

class ReplacementFault : public LaunchedTrainingFault, public testing::WithParamInterface<Case> {};

TEST_P(ReplacementFault, EndsWithTheWeightsOfAQuietTraining) {
  const Case& one = GetParam();
  const Finished end = run(one.world, one.options, one.events);
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(says(end.err, "a new process takes its place")) << end.err;
  expect_quiet_weights(one.world);
}
INSTANTIATE_TEST_SUITE_P(
    All, ReplacementFault,
    testing::Values(
        Case{4, {"--min-workers", "2", "--newcomers", "1"}, {"10:1:0:kill"}},
        Case{3, {"--min-workers", "3", "--newcomers", "1"}, {"10:2:0:7"}},
        // Rank 0, and a process that waits.
        Case{4, {"--min-workers", "2", "--newcomers", "2", "--standby", "0"}, {"20:0:0:kill", "30:3:0:kill"}},
        // Two at once.
        Case{4, {"--min-workers", "1", "--newcomers", "2"}, {"10:0:0:kill", "10:2:0:kill"}},
        // One after another in the same place; a newcomer before it has joined, and after that.
        Case{3,
             {"--min-workers", "2", "--newcomers", "4"},
             {"10:1:0:kill", "start:1:1:3", "join:1:2:kill", "20:1:3:kill"}}));

TEST_F(LaunchedTrainingFault, WithoutNewcomersTheOthersGoOn) {
  const Finished end = run(4, {"--min-workers", "2"}, {"10:1:0:kill", "20:3:0:kill"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const char* line :
       {"lockstep: rank 1 failed: signal SIGKILL (9)\n", "  the job goes on with 3 of 4 workers\n",
        "lockstep: rank 3 failed: signal SIGKILL (9)\n", "  the job goes on with 2 of 4 workers\n"}) {
    EXPECT_TRUE(says(end.err, line)) << line << end.err;
  }
  EXPECT_TRUE(says(end.out, "[rank 2]: rank 2 has become 1 of 2\n")) << end.out;
  EXPECT_TRUE(weights(0) == weights(2) && !weights(0).empty());
  EXPECT_TRUE(weights(1).empty());
}

TEST_F(LaunchedTrainingFault, FewerThanTheLeastEndTheJobOrStartItAgain) {
  const Words options{"--min-workers", "2", "--max-restarts", "1"};
  const Finished again = run(3, options, {"10:1:0:kill", "20:2:0:kill"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(says(again.err, "  1 of 3 workers is left, fewer than --min-workers 2: the job ends\n")) << again.err;
  EXPECT_TRUE(says(again.err, "lockstep: starting all 3 workers again (restart 1 of 1)\n")) << again.err;
  expect_quiet_weights(3);
  const Finished end = run(3, {"--min-workers", "3"}, {"10:1:0:kill"});
  EXPECT_EQ(end.exit_code, 128 + SIGKILL) << end.err;
  EXPECT_TRUE(says(end.err, "lockstep: rank 1 failed first: signal SIGKILL (9)\n")) << end.err;
}

// Nobody waits for a newcomer that the launcher does not start.
TEST_F(LaunchedTrainingFault, WhenNoReplacementIsLeftTheOthersGoOn) {
  const Finished end = run(3, {"--min-workers", "2", "--newcomers", "1"}, {"10:1:0:kill", "join:1:1:kill"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(says(end.err, "lockstep: the newcomer for rank 1 failed: signal SIGKILL (9)\n")) << end.err;
  EXPECT_TRUE(says(end.out, "[rank 2]: rank 2 has become 1 of 2\n")) << end.out;
  EXPECT_EQ(lives(1), 2);
}

// The launcher starts a newcomer for one of two that have died; and none where a worker ends with 0. The others would
// wait for 60 s.
TEST_F(LaunchedTrainingFault, NobodyWaitsForOneThatIsNotStarted) {
  for (const Words& events :
       {Words{"10:1:0:kill", "10:2:0:kill"}, Words{"10:1:0:kill", "12:2:0:kill"}, Words{"10:1:0:0"}}) {
    const auto start = std::chrono::steady_clock::now();
    const Finished end = run(4, {"--min-workers", "2", "--newcomers", "1"}, events);
    EXPECT_EQ(end.exit_code, 0) << events[0] << end.err;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(50)) << events[0];
    EXPECT_TRUE(says(end.out, "has become 2 of 3\n")) << events[0] << end.out << end.err;
  }
}

// The newcomer of the first one is an ordinary rank of the second one.
TEST_F(LaunchedTrainingFault, ASecondTrainingHasAllRanks) {
  EXPECT_EQ(run(3, {}, {"twice"}).exit_code, 0);
  const std::string quiet = weights(0);
  const Finished end = run(3, {"--min-workers", "3", "--newcomers", "1"}, {"twice", "10:1:0:kill"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(weights(rank) == quiet && !quiet.empty()) << rank << end.err;
}

// It is alone at first, as rank 0.
TEST_F(LaunchedTrainingFault, ANewcomersOwnErrorIsNamedByTheRankThatItReplaces) {
  const Finished end = run(3, {"--min-workers", "3", "--newcomers", "1"}, {"10:2:0:kill", "join:2:1:throw"});
  EXPECT_EQ(end.exit_code, 1) << end.err;
  EXPECT_TRUE(says(end.err, "lockstep: the newcomer for rank 2 failed first: exit code 1\n")) << end.err;
}

// An error of the program, which ends the training on all ranks.
TEST_F(LaunchedTrainingFault, AnErrorOfTheProgramEndsTheJobAndIsNamed) {
  const Finished end = run(3, {"--min-workers", "1", "--newcomers", "1"}, {"10:1:0:throw"});
  EXPECT_EQ(end.exit_code, 1) << end.err;
  const std::size_t report = end.err.find("lockstep: rank 1 failed first: exit code 1\n");
  ASSERT_NE(report, std::string::npos) << end.err;
  EXPECT_TRUE(says(end.err.substr(report), "the program's own error")) << end.err;
}

// The others have waited for it in init_process_group.
TEST_F(LaunchedTrainingFault, ADeathBeforeTheWorldIsMadeEndsTheJob) {
  const Finished end = run(3, {"--min-workers", "2", "--newcomers", "1"}, {"start:1:0:kill"});
  EXPECT_EQ(end.exit_code, 128 + SIGKILL) << end.err;
  EXPECT_TRUE(says(end.err, "rank 1 could not take part: it has failed before it joined")) << end.err;
  EXPECT_TRUE(says(end.err, "lockstep: rank 1 failed first: signal SIGKILL (9)\n")) << end.err;
}

// When the training is over, a worker that fails counts like one that fails before.
TEST_F(LaunchedTrainingFault, AFailureAtTheEnd) {
  for (const char* event : {"end:1:0:kill", "left:1:0:5"}) {
    const Finished end = run(3, {"--min-workers", "2", "--newcomers", "1", "--grace", "1"}, {event});
    EXPECT_EQ(end.exit_code, 0) << event << end.err;
    EXPECT_TRUE(says(end.err, "lockstep: rank 1 failed: ")) << event << end.err;
    EXPECT_TRUE(weights(0) == quiet_weights(3) && weights(2) == quiet_weights(3)) << event;
  }
  const Finished end = run(3, {"--min-workers", "3"}, {"left:1:0:5"});
  EXPECT_EQ(end.exit_code, 5) << end.err;
}

// The others notice it by the world's timeout, and fail. Takes 5 s.
TEST_F(LaunchedTrainingFault, AFrozenWorkerEndsTheJob) {
  const Finished end = run(3, {"--min-workers", "2", "--grace", "1"}, {"10:1:0:stop"}, 5);
  EXPECT_EQ(end.exit_code, 1) << end.err;
  EXPECT_TRUE(says(end.err, "fewer than --min-workers 2")) << end.err;
}

// A newcomer is on its way; it is frozen, so that the moment lasts.
class NewcomerOnItsWayFault : public LaunchedTrainingFault {
 protected:
  void SetUp() override {
    ASSERT_TRUE(wait_for([&] { return lives(1) == 2; })) << job_.err_so_far();
  }
  Process job_{launch(3,
                      {"--min-workers", "2", "--newcomers", "1", "--tee", "3", "--log-dir", folder_.path("logs"),
                       "--rdzv-id", "x", "--grace", "1"},
                      folder_.path().native(), {"10:1:0:kill", "join:1:1:stop"})};
};

TEST_F(NewcomerOnItsWayFault, IsShownAsTheRankThatItReplaces) {
  const std::string pids = read_file(folder_.path("pid.1"));
  const Finished shown = run_program({LOCKSTEP_PROGRAM, "status", "x"});
  EXPECT_TRUE(says(shown.out, "3 of 3 workers are on this machine")) << shown.out << shown.err;
  EXPECT_TRUE(says(shown.out, pids.substr(pids.find('\n') + 1, pids.size() - pids.find('\n') - 2))) << shown.out;
  EXPECT_TRUE(says(job_.err_so_far(), "a new process takes its place")) << job_.err_so_far();
}

TEST_F(NewcomerOnItsWayFault, EndsWithTheLauncher) {
  kill(job_.pid(), SIGKILL);
  EXPECT_TRUE(job_.wait_until_no_descendant());
}

TEST_F(NewcomerOnItsWayFault, EndsWithASignal) {
  kill(job_.pid(), SIGTERM);
  EXPECT_EQ(job_.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(job_.wait_until_no_descendant());
}

TEST(LaunchedOptionsMulti, WhatIsNotOfferedIsRefused) {
  const auto refusal = [](const Words& options) { return run_program(launch(2, options, "/no/such/folder", {})).err; };
  EXPECT_TRUE(says(refusal({"--min-workers", "3"}), "expected at most the number of workers, which is 2"));
  EXPECT_TRUE(says(refusal({"--newcomers", "1"}), "needs --min-workers"));
  EXPECT_TRUE(says(refusal({"--min-workers", "1", "--nnodes", "2", "--rdzv-endpoint", "127.0.0.1"}),
                   "expected a job of one node"));
  EXPECT_TRUE(says(refusal({"--min-workers", "1", "--hosts", "a,b"}), "expected a job of one node"));
}

}  // namespace
}  // namespace lockstep::test
