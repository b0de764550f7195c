// The launcher works on when the disk under log files does not answer: it handles signals, failures and restarts.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cli/jobs.h"
#include "support/hung_disk.h"
#include "support/process.h"
#include "support/sanitizers.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class HungLogsFault : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { expect_no_leak_search_in_programs(); }

  // Workers say that they live, and run `script` once `folder_` has a file "go". GetParam() sends both streams to
  // files.
  std::unique_ptr<Process> start(const std::string& script, std::vector<std::string> options = {}) {
    const std::string wait = "echo lives; touch " + folder_.path("lives") + "$RANK; while ! [ -e " +
                             folder_.path("go") + " ]; do sleep 0.01; done; ";
    options.insert(options.end(),
                   {"--grace", "0.5", "--log-dir", disk_.path("logs"), "--rdzv-id", "j", GetParam(), "3"});
    return std::make_unique<Process>(job(2, wait + script, options));
  }
  void go() const { std::ofstream(folder_.path("go")); }
  bool wait_for_file(const std::string& name) const {
    return wait_for([&] { return std::filesystem::exists(folder_.path(name)); });
  }
  bool workers_live() const {
    return wait_for_file("lives0") && wait_for_file("lives1") &&
           wait_for([&] { return log(0, 0) == "lives\n" && log(0, 1) == "lives\n"; });
  }
  std::string log(int attempt, int rank) const {
    return disk_.contents("logs/j/attempt_" + std::to_string(attempt) + "/" + std::to_string(rank) + "/stdout.log");
  }

  HungDisk disk_;
  const ScratchFolder folder_;
};

const std::string kFlood = "yes 'a line of output that is not written' & sleep 1; touch ";

TEST_P(HungLogsFault, SignalsAreHandled) {
  const auto launcher = start(kFlood + folder_.path("stalled") + "$RANK; wait");
  ASSERT_TRUE(workers_live());
  disk_.hang();
  go();
  ASSERT_TRUE(wait_for_file("stalled1"));
  if (GetParam() == std::string("--tee")) {
    ASSERT_TRUE(wait_for([&] { return contains(launcher->err_so_far(), "have not answered for 1 s"); }));
  }
  kill(launcher->pid(), SIGTERM);
  const Finished end = launcher->finish(std::chrono::seconds(20));
  EXPECT_EQ(end.exit_code, 128 + SIGTERM) << end.err;
  EXPECT_TRUE(launcher->wait_until_no_descendant());
  if (GetParam() != std::string("--tee")) return;
  EXPECT_TRUE(contains(end.err, "did not take the end of the output in time")) << end.err;
}

TEST_P(HungLogsFault, FailuresAreHandled) {
  const auto launcher = start("[ $RANK = 1 ] && exit 7; sleep 600");
  ASSERT_TRUE(workers_live());
  disk_.hang();
  go();
  const Finished end = launcher->finish(std::chrono::seconds(20));
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_TRUE(contains(end.err, "rank 1 failed first: exit code 7")) << end.err;
  EXPECT_TRUE(launcher->wait_until_no_descendant());
}

TEST_P(HungLogsFault, ARestartWaitsForTheDiskOrASignal) {
  const auto launcher = start(
      "[ $LOCKSTEP_RESTART_COUNT = 0 ] && exit 7; echo again; touch " + folder_.path("again") + "$RANK; sleep 600",
      {"--max-restarts", "2"});
  ASSERT_TRUE(workers_live());
  disk_.hang();
  go();
  ASSERT_TRUE(wait_for([&] { return contains(launcher->err_so_far(), "(restart 1 of 2)"); }));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("again0")));
  disk_.go_on();
  ASSERT_TRUE(wait_for_file("again0") && wait_for_file("again1"));
  EXPECT_TRUE(wait_for([&] { return log(1, 0) == "lives\nagain\n"; })) << log(1, 0);
  disk_.hang();
  kill(launcher->pid(), SIGTERM);
  EXPECT_EQ(launcher->finish(std::chrono::seconds(20)).exit_code, 128 + SIGTERM);
  EXPECT_TRUE(launcher->wait_until_no_descendant());
}

TEST_P(HungLogsFault, TheStartWaitsForTheDiskOrASignal) {
  disk_.hang();
  const auto launcher = start("");
  ASSERT_TRUE(wait_for([&] { return contains(launcher->err_so_far(), "have not answered for 1 s"); }));
  kill(launcher->pid(), SIGTERM);
  const Finished end = launcher->finish(std::chrono::seconds(20));
  EXPECT_EQ(end.exit_code, 128 + SIGTERM);
  EXPECT_TRUE(contains(end.err, "a signal came before log files")) << end.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.path("lives0")));
}

INSTANTIATE_TEST_SUITE_P(Options, HungLogsFault, testing::Values("--tee", "--redirects"),
                         [](const auto& info) { return std::string(info.param).substr(2); });

using HungLogsOnceFault = HungLogsFault;
INSTANTIATE_TEST_SUITE_P(Options, HungLogsOnceFault, testing::Values("--tee"), [](const auto&) { return "tee"; });

TEST_P(HungLogsOnceFault, ADiskThatAnswersAgainHasEverything) {
  const auto launcher = start("seq 1 200000; echo end");
  ASSERT_TRUE(workers_live());
  disk_.hang();
  go();
  ASSERT_TRUE(wait_for([&] { return contains(launcher->err_so_far(), "have not answered for 1 s"); }));
  EXPECT_FALSE(contains(launcher->out_so_far(), "end"));  // the workers wait
  disk_.go_on();
  EXPECT_EQ(launcher->finish().exit_code, 0);
  for (const int rank : {0, 1}) {
    const std::string text = log(0, rank);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 200002);
    EXPECT_TRUE(text.ends_with("200000\nend\n"));
  }
}

}  // namespace
}  // namespace lockstep::test
