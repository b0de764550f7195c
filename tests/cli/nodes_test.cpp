// Jobs over several nodes: real launchers on this machine, which meet at a loopback address.
#include "cli/nodes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>

#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

Words shell(const std::string& script) {
  return {"sh", "-c", script};
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

struct World {
  std::vector<int> workers;  // by node rank
  std::vector<int> order;    // in which the launchers start
};

class NodeWorldsMulti : public testing::TestWithParam<World> {};

TEST_P(NodeWorldsMulti, WorkersHaveTorchrunsEnvironment) {
  const World& world = GetParam();
  const int nodes = static_cast<int>(world.workers.size());
  LocalNodes job(std::to_string(nodes), {"--rdzv-id", "seven", "--max-restarts", "2"});
  for (const int node : world.order) {
    job.start(world.workers[static_cast<std::size_t>(node)],
              shell("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK "
                    "$ROLE_WORLD_SIZE $TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS "
                    "$LOCKSTEP_RESTART_COUNT $MASTER_ADDR; echo $MASTER_PORT $LOCKSTEP_STORE $LOCKSTEP_JOB_KEY >&2"),
              {"--node-rank", std::to_string(node)});
  }
  std::set<std::string> expected;
  std::set<std::string> services;
  int rank = 0;
  int size = 0;
  for (const int workers : world.workers) size += workers;
  for (int node = 0; node < nodes; ++node) {
    for (int local = 0; local < world.workers[static_cast<std::size_t>(node)]; ++local, ++rank) {
      std::ostringstream line;
      line << "[rank " << rank << "]: " << rank << " " << local << " " << size << " "
           << world.workers[static_cast<std::size_t>(node)] << " " << node << " " << nodes << " " << rank << " " << size
           << " seven 0 2 0 127.0.0.1";
      expected.insert(line.str());
    }
  }
  std::set<std::string> found;
  for (int number = 0; number < nodes; ++number) {
    const Finished end = job.node(number).finish();
    EXPECT_EQ(end.exit_code, 0) << end.err;
    found.merge(lines_of(end.out));
    for (const std::string& line : lines_of(end.err)) services.insert(line.substr(line.find(": ") + 2));
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(services.size(), 1U);  // the same for all
}

INSTANTIATE_TEST_SUITE_P(Worlds, NodeWorldsMulti,
                         testing::Values(World{{1, 1}, {0, 1}}, World{{2, 1}, {1, 0}}, World{{1, 3, 2}, {2, 0, 1}}));

TEST(NodesMulti, NodesWithoutNumbersAreNumberedAsTheyCome) {
  LocalNodes job("2");
  const Words program = shell("echo $GROUP_RANK $TORCHELASTIC_RUN_ID");
  Process& first = job.start(1, program, {"--rdzv-conf", "is_host=true"});
  Process& second = job.start(2, program, {"--rdzv-conf", "is_host=false", "--local-ranks-filter", "1"});
  const std::string all = first.finish().out + second.finish().out;
  EXPECT_TRUE(contains(all, "[rank 0]: 0 none\n")) << all;
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 2) << all;  // local rank 0 of the second is not shown
}

TEST(NodesMulti, MasterAddressAndVariablesAsKubeflowSetsThem) {
  const HeldPort port;
  const Words common{"PET_NNODES=2", "PET_MASTER_ADDR=127.0.0.1", "PET_MASTER_PORT=" + std::to_string(port.number()),
                     "PET_NPROC_PER_NODE=2", "LOCKSTEP_JOB_KEY=k"};
  const Words command = Words{LOCKSTEP_PROGRAM, "run"} + shell("echo $RANK $WORLD_SIZE");
  Process second(command, {.environment = common + Words{"PET_NODE_RANK=1"}});
  Process first(command, {.environment = common + Words{"PET_NODE_RANK=0"}});
  EXPECT_EQ(lines_of(first.finish().out), (std::set<std::string>{"[rank 0]: 0 4", "[rank 1]: 1 4"}));
  EXPECT_EQ(lines_of(second.finish().out), (std::set<std::string>{"[rank 2]: 2 4", "[rank 3]: 3 4"}));
}

TEST(NodesMulti, TheKeyMayBeInAFileOrInTheHomeDirectory) {
  const ScratchFolder folder;
  std::ofstream(folder.path("key")) << "a secret\n";
  for (const Words& options : {Words{"--job-key-file", folder.path("key")}, Words{}}) {
    LocalNodes job("2", options);
    const Words home{"LOCKSTEP_JOB_KEY=", "HOME=" + folder.path().string(), "XDG_STATE_HOME="};
    job.start(1, {"true"}, {}, home);
    job.start(1, {"true"}, {}, home);
    EXPECT_EQ(job.node(0).finish().exit_code, 0);
    EXPECT_EQ(job.node(1).finish().exit_code, 0);
  }
}

TEST(NodesFault, TheFirstFailureIsNamedOnEveryNode) {
  LocalNodes job("3");
  const Words program = shell("[ $RANK != 2 ] || { echo out of luck >&2; kill -SEGV $$; }; exec sleep 600");
  for (int node = 0; node < 3; ++node) job.start(node + 1, program, {"--node-rank", std::to_string(node)});
  for (int node = 0; node < 3; ++node) {
    const Finished end = job.node(node).finish();
    EXPECT_EQ(end.exit_code, 128 + SIGSEGV);
    EXPECT_TRUE(contains(end.err, "lockstep: rank 2 failed first: signal SIGSEGV (11)")) << end.err;
    EXPECT_TRUE(contains(end.err, "  node 1, host ")) << end.err;
    EXPECT_TRUE(contains(end.err, "local rank 1,")) << end.err;
    EXPECT_TRUE(contains(end.err, "\n    out of luck\n")) << end.err;
    EXPECT_FALSE(contains(end.err, "rank 0 failed")) << end.err;
    EXPECT_TRUE(job.node(node).wait_until_no_descendant());
  }
}

TEST(NodesFault, ARestartGoesOnFromTheLastStep) {
  const ScratchFolder folder;
  LocalNodes job("2", {"--max-restarts", "2"});
  const Words program{LOCKSTEP_STEPPING_WORKER, folder.path("steps"), "40", "2", "25", "1"};
  job.start(2, program, {"--node-rank", "0"});
  job.start(1, program, {"--node-rank", "1"});
  const Finished first = job.node(0).finish();
  const Finished second = job.node(1).finish();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_TRUE(contains(second.out, "rank 2 of 3 begins at step 0")) << second.out;
  EXPECT_TRUE(contains(second.out, "rank 2 of 3 begins at step 25") || contains(second.out, "begins at step 24"))
      << second.out;
  for (const Finished& end : {first, second}) {
    EXPECT_TRUE(contains(end.err, "rank 2 failed first: signal SIGKILL (9)")) << end.err;
    EXPECT_TRUE(contains(end.err, "a worker failed (restart 1 of 2)")) << end.err;
  }
  EXPECT_EQ(read_file(folder.path("steps")), "40\n");
}

TEST(NodesFault, RestartsAreUsedUp) {
  LocalNodes job("2", {"--max-restarts", "1"});
  job.start(1, shell("exec sleep 600"), {"--node-rank", "0", "--rdzv-conf", "same_program=false"});
  job.start(1, shell("exit 9"), {"--node-rank", "1", "--rdzv-conf", "same_program=false"});
  for (int node = 0; node < 2; ++node) {
    const Finished end = job.node(node).finish();
    EXPECT_EQ(end.exit_code, 9) << end.err;
    EXPECT_TRUE(contains(end.err, "after 1 of 1 restarts")) << end.err;
  }
}

// Waits until one of the workers has said so.
bool says(const Process& process, const std::string& text) {
  return wait_for([&] { return contains(process.out_so_far(), text); });
}

TEST(NodesFault, AnElasticJobLosesANodeAndGetsAnother) {
  const ScratchFolder folder;
  LocalNodes job("1:2", {"--max-restarts", "3"});
  const Words program{LOCKSTEP_STEPPING_WORKER, folder.path("steps"), "100000", "-1", "0", "0", "5"};
  const auto numbered = [](const char* rank, const char* host) {
    return Words{"--node-rank", rank, "--rdzv-conf", std::string("last_call_timeout=20,is_host=") + host};
  };
  Process& first = job.start(1, program, numbered("0", "true"));
  Process& second = job.start(2, program, numbered("1", "false"));
  ASSERT_TRUE(says(first, "rank 0 of 3 begins at step 0")) << first.err_so_far();
  ASSERT_TRUE(wait_for([&] { return read_file(folder.path("steps")).size() >= 3; }));
  kill(second.pid(), SIGKILL);
  EXPECT_TRUE(second.wait_until_no_descendant());
  ASSERT_TRUE(says(first, "rank 0 of 1 begins at step ")) << first.err_so_far();
  EXPECT_TRUE(contains(first.err_so_far(), "node 1 (host ")) << first.err_so_far();
  EXPECT_TRUE(contains(first.err_so_far(), "was lost")) << first.err_so_far();
  EXPECT_TRUE(contains(first.err_so_far(), "a node was lost (restart 1 of 3)")) << first.err_so_far();
  Process& third = job.start(1, program, numbered("1", "false"));
  ASSERT_TRUE(says(third, "rank 1 of 2 begins at step ")) << third.err_so_far();
  EXPECT_FALSE(contains(third.out_so_far(), "begins at step 0\n"));
  // A node that leaves does not count as a failure.
  kill(third.pid(), SIGTERM);
  EXPECT_EQ(third.finish().exit_code, 128 + SIGTERM);
  ASSERT_TRUE(wait_for([&] { return contains(first.err_so_far(), "a node left, 1 node remain"); }));
  kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.finish().exit_code, 128 + SIGTERM);
  EXPECT_TRUE(first.wait_until_no_descendant());
}

TEST(NodesFault, AnAskedEndOfOneNodeEndsAFixedJob) {
  LocalNodes job("2");
  for (int node = 0; node < 2; ++node) {
    job.start(1, shell("echo ready; exec sleep 600"), {"--node-rank", std::to_string(node)});
  }
  ASSERT_TRUE(says(job.node(0), "ready") && says(job.node(1), "ready"));
  kill(job.node(1).pid(), SIGTERM);
  for (int node = 0; node < 2; ++node) EXPECT_EQ(job.node(node).finish().exit_code, 128 + SIGTERM);
  const std::string err = job.node(0).err_so_far();
  EXPECT_TRUE(contains(err, "node 1 (host ") && contains(err, "was asked to end by SIGTERM")) << err;
}

TEST(NodesFault, TheLossOfTheLauncherThatServesIsNamed) {
  LocalNodes job("2", {"--max-restarts", "3"});
  const Words program = shell("echo ready; exec sleep 600");
  Process& host = job.start(1, program, {"--rdzv-conf", "is_host=true"});
  Process& other = job.start(1, program, {"--rdzv-conf", "is_host=false"});
  ASSERT_TRUE(says(host, "ready") && says(other, "ready"));
  kill(host.pid(), SIGKILL);
  const Finished end = other.finish();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "lost the launcher that serves the rendezvous at " + job.endpoint())) << end.err;
  EXPECT_TRUE(other.wait_until_no_descendant());
  EXPECT_TRUE(host.wait_until_no_descendant());
}

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

TEST_F(BadNodesFault, AnotherKey) {
  expect_refused("key", false, 1, {}, {}, {"true"}, {"true"}, {"LOCKSTEP_JOB_KEY=another"});
}

TEST_F(BadNodesFault, AnotherJobAtTheSamePlace) {
  expect_refused("serves the job 'one', and this one belongs to 'two'", false, 1, {"--rdzv-id", "one"},
                 {"--rdzv-id", "two"});
}

TEST_F(BadNodesFault, NobodyComes) {
  LocalNodes job("2", {"--rdzv-conf", "join_timeout=0.3"});
  const Finished end = job.start(1, {"true"}).finish();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "1 node of at least 2 there at the end of the join timeout")) << end.err;
}

TEST_F(BadNodesFault, NobodyServes) {
  LocalNodes job("2", {"--rdzv-conf", "join_timeout=0.5,is_host=false"});
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
    usleep(100'000);
    kill(launcher.pid(), SIGINT);
    EXPECT_EQ(launcher.finish().exit_code, 128 + SIGINT);
  }
}

}  // namespace
}  // namespace lockstep::test
