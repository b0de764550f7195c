// `lockstep run` inside containers.
#include "support/containers.h"

#include <gtest/gtest.h>

#include <csignal>

#include "cli/nodes.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

Container strict() {
  return {.processes = true, .ipc_and_name = true, .read_only = true, .shm = "0", .filter = LOCKSTEP_FORBID_CALLS};
}

Words launcher(const Words& options, const Words& program) {
  return Words{LOCKSTEP_PROGRAM, "run"} + options + program;
}

// The launcher is process 1 there.
TEST(ContainerRunMulti, StartsReportsAndEndsWorkersInAContainer) {
  const Finished good = run_program(inside(
      strict(), launcher({"--nproc-per-node", "2"}, {"sh", "-c", "echo $RANK of $WORLD_SIZE with $OMP_NUM_THREADS"})));
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_TRUE(contains(good.out, "[rank 1]: 1 of 2 with ")) << good.out;
  const Finished bad = run_program(
      inside(strict(), launcher({"--nproc-per-node", "2"}, {"sh", "-c", "[ $RANK = 0 ] || exit 7; sleep 60"})));
  EXPECT_EQ(bad.exit_code, 7);
  EXPECT_TRUE(contains(bad.err, "rank 1 failed first: exit code 7")) << bad.err;
}

TEST(ContainerRunMulti, AJobThatIsProcessOneIsShownAndStopped) {
  const std::string program = LOCKSTEP_PROGRAM;
  const Finished end =
      run_program(inside(strict(), launcher({"--nproc-per-node", "2", "--rdzv-id", "first"},
                                            {"sh", "-c",
                                             "[ $RANK = 0 ] && " + program + " ps --quiet && " + program +
                                                 " status first && " + program + " stop first; sleep 60"})));
  EXPECT_EQ(end.exit_code, 128 + SIGTERM) << end.err;
  EXPECT_TRUE(contains(end.out, "[rank 0]: first\n")) << end.out << end.err;
  EXPECT_TRUE(contains(end.out, "2 of 2 workers are on this machine")) << end.out << end.err;
}

// It does not handle SIGTERM, so the system drops this signal.
TEST(ContainerRunMulti, AProgramWithSpawnThatIsProcessOneIsShownAndStopped) {
  const std::string program = LOCKSTEP_PROGRAM;
  for (const std::string how : {"", "--now "}) {
    const Finished end = run_program(
        inside(strict(), {LOCKSTEP_SPAWNING_PROGRAM, program + " status 1 && " + program + " stop " + how + "1"}));
    EXPECT_EQ(end.exit_code, 1) << end.err;
    EXPECT_TRUE(contains(end.out, "2 of 2 workers are on this machine")) << end.out << end.err;
    EXPECT_TRUE(contains(end.out, how.empty() ? "signal SIGTERM" : "signal SIGKILL")) << end.out;
  }
}

TEST(ContainerRunMulti, WhoIsNobodyOrRootInAUserNamespaceCanRunJobs) {
  for (const auto user : {Container::User::kRootInside, Container::User::kNobody}) {
    Container container = strict();
    container.user = user;
    const Finished end = run_program(inside(container, launcher({"--nproc-per-node", "2"}, {"true"})));
    EXPECT_EQ(end.exit_code, 0) << end.err;
  }
}

TEST(ContainerRunMulti, CoresAreThoseThatTheControlGroupPaysFor) {
  Container container = strict();
  container.cores = "1";
  const Finished one = run_program(
      inside(container, launcher({"--nproc-per-node", "cpu"}, {"sh", "-c", "echo $WORLD_SIZE with $OMP_NUM_THREADS"})));
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.out, "1 with 1\n");
  container.cores = "0.2";
  const Finished less = run_program(
      inside(container, launcher({"--nproc-per-node", "cpu"}, {"sh", "-c", "echo $WORLD_SIZE with $OMP_NUM_THREADS"})));
  EXPECT_EQ(less.out, "1 with 1\n") << less.err;
}

TEST(ContainerRunFault, ATerminatedContainerLeavesNothing) {
  const ScratchFolder folder;
  Process job(inside(strict(), launcher({"--nproc-per-node", "2"}, {"sh", "-c", "echo started; exec sleep 60"})));
  const auto started = [&] {
    const std::string out = job.out_so_far();
    return contains(out, "[rank 0]: started") && contains(out, "[rank 1]: started");
  };
  ASSERT_TRUE(wait_for(started)) << job.err_so_far();
  kill(job.pid(), SIGKILL);  // as a runtime does in the end
  EXPECT_TRUE(job.wait_until_no_descendant());
}

// Two launchers in containers of one machine that have the machine's network are two nodes, whose ranks meet.
TEST(ContainerRunMulti, LaunchersInContainersAreNodesOfOneJob) {
  LocalNodes nodes("2");
  const ScratchFolder folder;
  std::vector<std::unique_ptr<Process>> launchers;
  for (const char* rank : {"0", "1"}) {
    Container container = strict();
    container.read_only = false;  // the workers write a file
    Process::Settings settings;
    settings.environment = {"LOCKSTEP_JOB_KEY=secret of the test"};
    launchers.push_back(std::make_unique<Process>(
        inside(container, launcher({"--nnodes", "2", "--nproc-per-node", "2", "--node-rank", rank, "--rdzv-endpoint",
                                    nodes.endpoint(), "--rdzv-backend", "c10d"},
                                   {LOCKSTEP_STEPPING_WORKER, folder.path("steps"), "5"})),
        settings));
  }
  std::string out;
  for (const auto& one : launchers) {
    const Finished end = one->finish();
    EXPECT_EQ(end.exit_code, 0) << end.err;
    out += end.out;
  }
  EXPECT_TRUE(contains(out, "rank 3 of 4 begins at step 0")) << out;
  EXPECT_EQ(read_file(folder.path("steps")), "5\n");
}

}  // namespace
}  // namespace lockstep::test
