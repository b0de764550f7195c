// Launchers that cannot be one job, jobs that get into one another's way, and stores that outlive them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <utility>

#include "cli/nodes.h"
#include "lockstep/store/tcp_store.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

// Two launchers that cannot be one job: `words` are in the error of the second, and `in_both` tells whether the first
// fails for the same reason.
void expect_refused(const std::string& words, bool in_both, int exit_code, const Words& first_options,
                    const Words& second_options, const Words& first_program = {"true"},
                    const Words& second_program = {"true"}, const Words& second_environment = {}) {
  LocalNodes job("2");
  Process& first = job.start(1, first_program, first_options);
  ASSERT_TRUE(wait_for([&] { return first.ended() || contains(first.err_so_far(), "joined"); }));
  Process& second = job.start(1, second_program, second_options, second_environment);
  const Finished end = second.finish();
  EXPECT_EQ(end.exit_code, exit_code) << end.err;
  EXPECT_TRUE(contains(end.err, words)) << end.err;
  if (!in_both) {
    kill(first.pid(), SIGTERM);
    EXPECT_EQ(first.finish().exit_code, 128 + SIGTERM);
    return;
  }
  const Finished other = first.finish();
  EXPECT_EQ(other.exit_code, exit_code) << other.err;
  EXPECT_TRUE(contains(other.err, words)) << other.err;
}

class BadNodesFault : public testing::Test {
 protected:
  void SetUp() override { setenv("LOCKSTEP_LOG_LEVEL", "info", 1); }
  void TearDown() override { unsetenv("LOCKSTEP_LOG_LEVEL"); }
};

TEST_F(BadNodesFault, ANodeNumberTwice) {
  expect_refused("node rank 0 is there already: node 0 (host ", false, 1, {"--node-rank", "0"}, {"--node-rank", "0"});
}

TEST_F(BadNodesFault, TheNodeThatServesTwice) {
  const Words serves{"--rdzv-backend", "static", "--node-rank", "0"};
  expect_refused("node rank 0 is there already: node 0 (host ", false, 1, serves, serves);
}

TEST_F(BadNodesFault, AnotherProgram) {
  expect_refused("the program 'false'", true, 1, {}, {}, {"true"}, {"false"});
}

TEST_F(BadNodesFault, AnotherNumberOfRestarts) {
  expect_refused("--max-restarts '4'", true, 1, {}, {"--max-restarts", "4"});
}

TEST_F(BadNodesFault, AProgramThatOneNodeLacks) {
  expect_refused("there is no file './no_such_train'", true, 127, {"--rdzv-conf", "same_program=0"},
                 {"--rdzv-conf", "same_program=0"}, {"true"}, {"./no_such_train"});
}

TEST_F(BadNodesFault, AnotherGraceTime) {
  expect_refused("--grace '7 s'", true, 1, {}, {"--grace", "7"});
}

TEST_F(BadNodesFault, AnotherSilence) {
  expect_refused("--rdzv-conf silence '3 s'", true, 1, {}, {"--rdzv-conf", "silence=3"});
}

TEST_F(BadNodesFault, AnotherKey) {
  expect_refused("key", false, 1, {}, {}, {"true"}, {"true"}, {"LOCKSTEP_JOB_KEY=another secret of the test"});
}

TEST_F(BadNodesFault, AnotherJobAtTheSamePlace) {
  expect_refused("serves the job 'one', and this one belongs to 'two'", false, 1, {"--rdzv-id", "one"},
                 {"--rdzv-id", "two"});
}

// Two jobs with one id. The second has run nothing, and says so; the first is not disturbed.
TEST_F(BadNodesFault, AJobThatHasAllOfItsNodesTakesNoOther) {
  LocalNodes job("2", {"--rdzv-id", "one"});
  const ScratchFolder folder;
  const Words program = shell("echo ready; while [ ! -e " + folder.path("end") + " ]; do sleep 0.01; done");
  job.start(1, program);
  job.start(1, program);
  ASSERT_TRUE(says(job.node(0), "ready") && says(job.node(1), "ready"));
  for (const Words& numbered : {Words{}, Words{"--node-rank", "1"}}) {
    const Finished end = job.start(1, shell("touch " + folder.path("ran")), {"--rdzv-conf", "same_program=0"}).finish();
    EXPECT_EQ(end.exit_code, 1) << end.err;
    EXPECT_TRUE(contains(end.err, "the program 'sh -c touch")) << end.err;  // the first node's settings count
    const Finished same = job.start(1, program, numbered).finish();
    EXPECT_EQ(same.exit_code, 1) << same.err;
    EXPECT_TRUE(contains(same.err,
                         "the job has all of its nodes, and no restart in which one could be replaced: "
                         "node (host "))
        << same.err;
    EXPECT_TRUE(contains(same.err, "For another job: another --rdzv-endpoint")) << same.err;
  }
  folder.write("end", "");
  for (int node = 0; node < 2; ++node) EXPECT_EQ(job.node(node).finish().exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder.path("ran")));
}

TEST_F(BadNodesFault, ALauncherThatNeverGotAPlaceDoesNotEndWell) {
  LocalNodes job("2", {"--rdzv-id", "one", "--max-restarts", "1"});
  const ScratchFolder folder;
  const Words program = shell("echo ready; while [ ! -e " + folder.path("end") + " ]; do sleep 0.01; done");
  job.start(1, program);
  job.start(1, program);
  ASSERT_TRUE(says(job.node(0), "ready") && says(job.node(1), "ready"));
  Process& third = job.start(1, program);
  ASSERT_TRUE(wait_for([&] { return contains(third.err_so_far(), "waits for a place"); })) << third.err_so_far();
  folder.write("end", "");
  for (int node = 0; node < 2; ++node) EXPECT_EQ(job.node(node).finish().exit_code, 0);
  const Finished end = third.finish();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "which has run nothing. For another job: another --rdzv-endpoint")) << end.err;
}

TEST_F(BadNodesFault, NobodyComes) {
  LocalNodes job("2", {"--rdzv-conf", "join_timeout=2"});
  const Finished end = job.start(1, {"true"}).finish();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "1 node of at least 2 there at the end of the join timeout")) << end.err;
}

TEST_F(BadNodesFault, NobodyServes) {
  LocalNodes job("2", {"--rdzv-conf", "join_timeout=2,is_host=false"});
  const Finished end = job.start(1, {"true"}).finish();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "cannot meet the other nodes at " + job.endpoint())) << end.err;
  EXPECT_TRUE(contains(end.err, "attempts in ")) << end.err;
}

TEST_F(BadNodesFault, ASignalWhileWaitingEndsAtOnce) {
  LocalNodes job("2");
  for (const char* conf : {"is_host=true", "is_host=false"}) {
    Process& launcher = job.start(1, {"true"}, {"--rdzv-conf", conf});
    ASSERT_TRUE(wait_for([&] {
      const std::string err = launcher.err_so_far();
      return contains(err, "joined") || conf == std::string("is_host=false");
    }));
    ASSERT_TRUE(
        wait_for([&] { return takes_signal(launcher.pid(), SIGUSR1) && takes_signal(launcher.pid(), SIGINT); }));
    kill(launcher.pid(), SIGUSR1);  // for workers, of which there are none
    usleep(100'000);
    kill(launcher.pid(), SIGINT);
    EXPECT_EQ(launcher.finish().exit_code, 128 + SIGINT);
  }
}

TEST_F(BadNodesFault, ASignalWhileReadingTheKeyEndsAtOnce) {
  const ScratchFolder folder;
  const std::string pipe = folder.path("pipe");  // into which nobody writes
  Process launcher(shell(
      "mkfifo " + pipe +
      " && exec " LOCKSTEP_PROGRAM " run --nnodes 2 --rdzv-endpoint 127.0.0.1 --job-key-file - true 0<> " + pipe));
  usleep(200'000);
  kill(launcher.pid(), SIGINT);
  EXPECT_EQ(launcher.finish().exit_code, 128 + SIGINT);
}

// The same job again, on one node a little earlier than on the other, where the first launcher has still to end.
TEST_F(BadNodesFault, TheNextJobWaitsForTheEndOfTheOneBefore) {
  LocalNodes job("2", {"--max-restarts", "1"});
  const ScratchFolder folder;
  const Words program = shell("echo ready; while [ ! -e " + folder.path("end") + " ]; do sleep 0.01; done");
  Process& host = job.start(1, program, {"--rdzv-conf", "is_host=true"});
  Process& other = job.start(1, program, {"--rdzv-conf", "is_host=false"});
  ASSERT_TRUE(says(host, "ready") && says(other, "ready"));
  // As long as a launcher has not read the end of the job, the one that serves stays.
  Process& slow = job.start(1, program, {"--rdzv-conf", "is_host=false"});
  ASSERT_TRUE(wait_for([&] { return contains(slow.err_so_far(), "waits for a place"); })) << slow.err_so_far();
  kill(slow.pid(), SIGSTOP);
  folder.write("end", "");
  EXPECT_EQ(other.finish().exit_code, 0);
  Process& next = job.start(1, {"echo", "again"}, {"--rdzv-conf", "is_host=false"});
  Process& hasty = job.start(1, {"echo", "again"}, {"--rdzv-conf", "is_host=false,join_timeout=5"});
  for (const Process* one : {&next, &hasty}) {
    EXPECT_TRUE(wait_for([&] { return contains(one->err_so_far(), "the job has ended already"); }))
        << one->err_so_far();
  }
  EXPECT_FALSE(next.ended()) << next.err_so_far();
  kill(slow.pid(), SIGCONT);
  EXPECT_EQ(slow.finish().exit_code, 1);
  EXPECT_EQ(host.finish().exit_code, 0);
  // No next job comes in its time. It does not only say that nobody is there.
  const Finished late = hasty.finish();
  EXPECT_EQ(late.exit_code, 1);
  const std::size_t error = late.err.rfind("\nlockstep: ");
  EXPECT_TRUE(contains(late.err.substr(error + 1), "the job has ended already")) << late.err;
  EXPECT_EQ(job.start(1, {"echo", "again"}, {"--rdzv-conf", "is_host=true"}).finish().exit_code, 0);
  const Finished end = next.finish();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(contains(end.out, "again")) << end.out;
}

// A store that outlives its jobs.
class OwnStoreFault : public BadNodesFault {
 protected:
  OwnStoreFault() {
    comm::TcpStoreServerOptions options;
    options.job_key = "secret of the test";
    store_ = std::move(comm::TcpStoreServer::start(std::move(options))).value();
  }
  std::unique_ptr<Process> start(const std::string& nnodes, const Words& program, const Words& more = {}) {
    return std::make_unique<Process>(Words{LOCKSTEP_PROGRAM, "run", "--nnodes", nnodes, "--rdzv-endpoint",
                                           store_->endpoint().text(), "--rdzv-id", "mine"} +
                                         more + program,
                                     Process::Settings{.environment = {"LOCKSTEP_JOB_KEY=secret of the test"}});
  }
  bool is_idle() { return store_->wait_until_idle(Deadline::after(std::chrono::seconds(20))); }

  std::unique_ptr<comm::TcpStoreServer> store_;
};

TEST_F(OwnStoreFault, TheSameIdWorksAgainAfterAllLaunchersWereKilled) {
  const Words program = shell("echo rank $RANK of $WORLD_SIZE starts; [ -z \"$WAITS\" ] || exec sleep 600");
  setenv("WAITS", "1", 1);
  // Killed while they wait for one another, while workers run, and where restarts are left.
  for (const auto& [launchers, restarts] : {std::pair(1, "0"), {2, "0"}, {2, "3"}}) {
    std::vector<std::unique_ptr<Process>> killed;
    for (int i = 0; i < launchers; ++i) killed.push_back(start("2", program, {"--max-restarts", restarts}));
    const bool runs = launchers == 2;
    for (const auto& one : killed) {
      ASSERT_TRUE(wait_for([&] {
        return runs ? contains(one->out_so_far(), "starts") : contains(one->err_so_far(), "joined");
      })) << one->err_so_far();
    }
    for (const auto& one : killed) kill(one->pid(), SIGKILL);
    for (const auto& one : killed) one->finish();
    ASSERT_TRUE(is_idle());
  }
  unsetenv("WAITS");
  // Other options than those of the dead, and two starts in a row.
  for (int time = 0; time < 2; ++time) {
    std::vector<std::unique_ptr<Process>> again;
    for (int i = 0; i < 3; ++i) again.push_back(start("3", program, {"--node-rank", std::to_string(i)}));
    for (const auto& one : again) {
      const Finished end = one->finish();
      EXPECT_EQ(end.exit_code, 0) << end.err;
      EXPECT_TRUE(contains(end.out, " of 3 starts")) << end.out << end.err;
    }
  }
}

}  // namespace
}  // namespace lockstep::test
