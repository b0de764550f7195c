// Jobs over several nodes: real launchers on this machine, which meet at a loopback address.
#include "cli/nodes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>

#include "lockstep/store/tcp_store.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

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
                     "PET_NPROC_PER_NODE=2", "LOCKSTEP_JOB_KEY=secret of the test"};
  const Words command = Words{LOCKSTEP_PROGRAM, "run"} + shell("echo $RANK $WORLD_SIZE");
  Process second(command, {.environment = common + Words{"PET_NODE_RANK=1"}});
  Process first(command, {.environment = common + Words{"PET_NODE_RANK=0"}});
  EXPECT_EQ(lines_of(first.finish().out), (std::set<std::string>{"[rank 0]: 0 4", "[rank 1]: 1 4"}));
  EXPECT_EQ(lines_of(second.finish().out), (std::set<std::string>{"[rank 2]: 2 4", "[rank 3]: 3 4"}));
}

// Machines have been up for different times. Needs root.
TEST(NodesMulti, ClocksMayDiffer) {
  const HeldPort port;
  const Words environment{"LOCKSTEP_JOB_KEY=secret of the test"};
  const Words run =
      Words{LOCKSTEP_PROGRAM, "run", "--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port.number()),
            "--node-rank"};
  const Words days_ahead{"unshare", "--time", "--monotonic", "864000", "--boottime", "864000", "--fork", "--"};
  Process first(run + Words{"0"} + shell("echo $RANK of $WORLD_SIZE"), {.environment = environment});
  Process second(days_ahead + run + Words{"1"} + shell("echo $RANK of $WORLD_SIZE"), {.environment = environment});
  const Finished end = first.finish();
  EXPECT_EQ(end.out, "[rank 0]: 0 of 2\n") << end.err;
  const Finished other = second.finish();
  EXPECT_EQ(other.out, "[rank 1]: 1 of 2\n") << other.err;
}

TEST(NodesMulti, TheKeyMayBeInAFileOrInTheHomeDirectory) {
  const ScratchFolder folder;
  std::ofstream(folder.path("key")) << "a secret of the test\n";
  ASSERT_EQ(chmod(folder.path("key").c_str(), 0644), 0);
  const Finished refused = Process(Words{LOCKSTEP_PROGRAM, "run", "--nnodes", "2", "--rdzv-endpoint", "127.0.0.1",
                                         "--job-key-file", folder.path("key"), "true"})
                               .finish();
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_TRUE(contains(refused.err, "others may read the job's key in '" + folder.path("key"))) << refused.err;
  ASSERT_EQ(chmod(folder.path("key").c_str(), 0600), 0);
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

// On the other node, whose only worker has failed already.
TEST(NodesFault, TheRankThatClaimedTheFailureIsNotAwaitedForEver) {
  for (const char* end_of_rank_0 : {"stay", "0"}) {
    const ScratchFolder folder;
    LocalNodes job("2", {"--grace", "0.1"});
    const Words program{LOCKSTEP_FAILING_WORKER, folder.path().string(), end_of_rank_0};
    Process& first = job.start(1, program, {"--node-rank", "0"});
    Process& second = job.start(1, program, {"--node-rank", "1"});
    for (Process* node : {&first, &second}) {
      const Finished end = node->finish();
      EXPECT_EQ(end.exit_code, 7) << end_of_rank_0;
      EXPECT_TRUE(contains(end.err, "rank 1 failed first: exit code 7")) << end_of_rank_0 << ": " << end.err;
    }
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
  // Standard error has a writer of its own.
  for (const char* words : {"node 1 (host ", "was lost", "a node was lost (restart 1 of 3)"}) {
    EXPECT_TRUE(wait_for([&] { return contains(first.err_so_far(), words); })) << words << first.err_so_far();
  }
  Process& third = job.start(1, program, numbered("1", "false"));
  ASSERT_TRUE(says(third, "rank 1 of 2 begins at step ")) << third.err_so_far();
  EXPECT_FALSE(contains(third.out_so_far(), "begins at step 0\n"));
  // A node that leaves does not count as a failure.
  kill(third.pid(), SIGTERM);
  EXPECT_EQ(third.finish().exit_code, 128 + SIGTERM);
  ASSERT_TRUE(wait_for([&] { return contains(first.err_so_far(), "a node left, the job has 1 node"); }));
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

// As when the launcher of the job before this one, at the same endpoint, ends a little later than the others.
TEST(NodesFault, AStoreThatEndsDuringTheJoinIsNotTheLast) {
  LocalNodes job("2");
  comm::TcpStoreServerOptions options;
  const std::string endpoint = job.endpoint();
  options.listen_at = {"127.0.0.1", static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)))};
  options.job_key = "secret of the test";
  auto before = comm::TcpStoreServer::start(std::move(options));
  ASSERT_TRUE(before.ok()) << before.status().message();
  job.start(1, {"true"}, {"--rdzv-conf", "is_host=false"});
  ASSERT_TRUE(wait_for([&] { return before.value()->num_clients() > 0; }));
  before.value().reset();
  job.start(1, {"true"}, {"--rdzv-conf", "is_host=true"});
  for (int node = 0; node < 2; ++node) {
    const Finished end = job.node(node).finish();
    EXPECT_EQ(end.exit_code, 0) << end.err;
  }
}

// A scheduler signals all nodes at the same time, and the news from another node may be faster.
TEST(NodesFault, AnAskedEndOfAllNodesLeavesTheWorkersTheirTime) {
  LocalNodes job("2");
  for (int node = 0; node < 2; ++node) {
    job.start(1, shell("trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done"),
              {"--node-rank", std::to_string(node)});
  }
  ASSERT_TRUE(says(job.node(0), "ready") && says(job.node(1), "ready"));
  kill(job.node(0).pid(), SIGTERM);
  usleep(100'000);
  kill(job.node(1).pid(), SIGTERM);
  for (int node = 0; node < 2; ++node) {
    const Finished end = job.node(node).finish();
    EXPECT_EQ(end.exit_code, 128 + SIGTERM);
    EXPECT_TRUE(contains(end.out, "saved")) << end.out << end.err;
  }
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

// The others would wait for it until their timeout.
TEST(NodesFault, ARankThatEndsBeforeItJoinsIsToldToTheOthers) {
  LocalNodes job("2");
  const Words program = shell("[ $RANK = 1 ] || exec " LOCKSTEP_PROGRAM " bench --sizes 4");
  job.start(1, program, {"--node-rank", "0"});
  job.start(1, program, {"--node-rank", "1"});
  const Finished end = job.node(0).finish();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "rank 1 could not take part: it has ended with exit code 0 before it joined"))
      << end.err;
}

}  // namespace
}  // namespace lockstep::test
