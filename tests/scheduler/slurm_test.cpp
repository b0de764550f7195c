// Programs, launchers, batch scripts and arrays under a Slurm of several nodes. The scripts are those of
// examples/slurm, and that of a new project.
#include <fmt/format.h>

#include <filesystem>

#include "slurm_cluster.h"
#include "support/read_file.h"

namespace lockstep::test {
namespace {

const std::string kScripts = LOCKSTEP_SOURCE "/examples/slurm/";

TEST(SlurmScheduler, TasksFindTheirWorld) {
  const SlurmCluster cluster(3);
  const auto srun = [&](const Words& options) {
    Words words{"srun"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back(LOCKSTEP_JOIN_WORLD);
    return cluster.run(words);
  };
  expect_world(srun({"-N", "3", "-n", "5"}), {3, 1, 1}, "Slurm");
  expect_world(srun({"-N", "1", "-n", "2"}), {2}, "Slurm");
  expect_world(srun({"-n", "1"}), {1}, "Slurm");
  // A step with fewer tasks than its allocation has.
  const Finished step =
      cluster.run({"salloc", "-Q", "-N", "2", "-n", "3", "srun", "-N", "2", "-n", "2", LOCKSTEP_JOIN_WORLD});
  expect_world(step, {1, 1}, "Slurm");
  // The allocation's shell is not a task: a program that it starts is alone.
  expect_world(cluster.run({"salloc", "-Q", "-n", "3", LOCKSTEP_JOIN_WORLD}), {1}, "not distributed");
}

TEST(SlurmScheduler, LaunchersAreTheNodesOfAJob) {
  const SlurmCluster cluster(3);
  const Words run{LOCKSTEP_PROGRAM, "run", "--nproc-per-node"};
  const auto srun = [&](Words words, const Words& rest) {
    words.insert(words.begin(), "srun");
    words.insert(words.end(), run.begin(), run.end());
    words.insert(words.end(), rest.begin(), rest.end());
    return cluster.run(words);
  };
  const std::string source = "launcher variables";
  expect_world(srun({"-N", "3"}, {"2", LOCKSTEP_JOIN_WORLD}), {2, 2, 2}, source);
  // The processors that Slurm has given the job on each node.
  const Finished uneven = cluster.run({"salloc", "-Q", "-N", "3", "-n", "4", "srun", "--ntasks-per-node=1", "-n", "3",
                                       LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "cpu", LOCKSTEP_JOIN_WORLD});
  expect_world(uneven, {2, 1, 1}, source);
  // One task: a job of one node. Several that have nothing to do with one another.
  expect_world(srun({"-n", "1"}, {"2", LOCKSTEP_JOIN_WORLD}), {2}, source);
  const Finished apart = srun({"-N", "2"}, {"1", "--standalone", "sh", "-c", "echo $WORLD_SIZE"});
  EXPECT_EQ(apart.out, "1\n1\n") << apart.err;
  const Finished failed = srun({"-N", "2"}, {"1", "sh", "-c", "[ $RANK = 0 ] || exit 7; exec sleep 60"});
  EXPECT_EQ(failed.exit_code, 7) << failed.err;
  // Slurm chooses the machines: that of the step before may not be free again.
  EXPECT_NE(failed.err.find("lockstep: rank 1 failed first: exit code 7\n  node 1, host node"), std::string::npos)
      << failed.err;
  const Finished crowd = srun({"-N", "1", "-n", "2"}, {"1", "true"});
  EXPECT_EQ(crowd.exit_code, 2);
  EXPECT_NE(crowd.err.find("srun has started 2 launchers on this node, expected one"), std::string::npos) << crowd.err;
}

// Arrays of one user at once, on the same nodes: none of the jobs meets another one.
TEST(SlurmScheduler, ArraysDoNotMeet) {
  const SlurmCluster cluster(3);
  const std::string output = "--output=" + cluster.folder().path("%A_%a.out");
  const std::string sweep = cluster.submit({output, kScripts + "sweep.sbatch", LOCKSTEP_JOIN_WORLD});
  Words ranks{"--array=0-1", "--nodes=2", "--ntasks=3", output, kScripts + "ranks.sbatch", LOCKSTEP_JOIN_WORLD};
  const std::string first = cluster.submit(ranks);
  const std::string second = cluster.submit(ranks);
  const auto out = [&](const std::string& job, int task) {
    return read_file(cluster.folder().path(fmt::format("{}_{}.out", job, task)));
  };
  for (const std::string& job : {sweep, first, second}) {
    EXPECT_TRUE(wait_for([&] { return cluster.has_ended(job); }, std::chrono::seconds(90))) << job;
  }
  for (int task = 0; task < 3; ++task) {
    EXPECT_EQ(sorted_lines(out(sweep, task)), world_lines({1, 1}, "launcher variables"));
    if (task == 2) continue;
    for (const std::string& job : {first, second}) {
      // Which node gets two of the three depends on what else runs there.
      const std::string world = sorted_lines(out(job, task));
      EXPECT_TRUE(world == world_lines({2, 1}, "Slurm") || world == world_lines({1, 2}, "Slurm")) << world;
    }
  }
}

// With fewer tasks and processors than it asks for, and another program in the place of the built one.
TEST(SlurmScheduler, TheScriptOfANewProjectStartsItsRanks) {
  const SlurmCluster cluster(2);
  const std::string project = cluster.folder().path("flowers");
  const Finished made = run_program({LOCKSTEP_PROGRAM, "new", project});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  std::filesystem::create_directory(project + "/build");
  std::filesystem::create_symlink(LOCKSTEP_JOIN_WORLD, project + "/build/train");
  const std::string job = cluster.submit({"--chdir=" + project, "--output=" + project + "/out", "--ntasks-per-node=2",
                                          "--cpus-per-task=2", "--time=10", project + "/scripts/slurm.sh"});
  EXPECT_TRUE(wait_for([&] { return cluster.has_ended(job); }, std::chrono::seconds(90)));
  const std::string out = read_file(project + "/out");
  EXPECT_EQ(sorted_lines(out), world_lines({2, 2}, "Slurm")) << out;
}

// What the training says, without the launcher's prefix and what Slurm says: "begins at step 0, first weight 0.1".
std::string last_line_with(const std::string& text, const std::string& words) {
  const std::size_t at = text.rfind(words);
  return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
}

// The job is asked to leave twice: by an urgent job that takes its nodes, and by a signal to the batch script, as
// --signal=B:TERM@60 gives it. It ends with the weights of a run that nothing has disturbed.
TEST(SlurmScheduler, APreemptedJobGoesOnFromItsCheckpoint) {
  const SlurmCluster cluster(2);
  const auto submit = [&](const std::string& name, const std::string& milliseconds) {
    return cluster.submit({"--nodes=2", "--output=" + cluster.folder().path(name + ".out"), kScripts + "train.sbatch",
                           LOCKSTEP_PREEMPTIBLE, cluster.folder().path(name), "400", milliseconds});
  };
  const auto out = [&](const std::string& name) { return read_file(cluster.folder().path(name + ".out")); };
  const auto has_ended = [&](const std::string& job) {
    return wait_for([&] { return cluster.has_ended(job); }, std::chrono::seconds(90));
  };
  const auto begins_for_the = [&](int time) {
    return wait_for(
        [&] {
          const std::string text = out("disturbed");
          std::size_t at = 0;
          for (int i = 0; i < time && at != std::string::npos; ++i) at = text.find("begins at step", at + 1);
          return at != std::string::npos;
        },
        std::chrono::seconds(60));
  };
  const std::string calm = submit("calm", "0");
  ASSERT_TRUE(has_ended(calm)) << out("calm");
  const std::string job = submit("disturbed", "20");
  ASSERT_TRUE(begins_for_the(1)) << out("disturbed");
  const Finished urgent = cluster.run({"srun", "-p", "urgent", "-N", "2", "--exclusive", "hostname"});
  EXPECT_EQ(sorted_lines(urgent.out), "node1\nnode2\n") << urgent.err;
  ASSERT_TRUE(begins_for_the(2)) << out("disturbed");
  EXPECT_EQ(cluster.run({"scancel", "--batch", "--signal=TERM", job}).exit_code, 0);
  ASSERT_TRUE(begins_for_the(3)) << out("disturbed");
  ASSERT_TRUE(has_ended(job)) << out("disturbed");
  const std::string text = out("disturbed");
  EXPECT_EQ(last_line_with(text, "is done at step 400, first weight"), last_line_with(out("calm"), "is done at step"))
      << text;
  EXPECT_EQ(last_line_with(text, "is done at step 400").empty(), false) << text;
  // Every start begins where the one before has left, which was not at its own beginning.
  std::size_t at = 0;
  long before = 0;
  for (int start = 0; start < 2; ++start) {
    at = text.find("leaves at step ", at + 1);
    ASSERT_NE(at, std::string::npos) << text;
    const long left = std::stol(text.substr(at + 15));
    EXPECT_GT(left, before);
    EXPECT_NE(text.find(fmt::format("begins at step {},", left), at), std::string::npos) << text;
    before = left;
  }
}

}  // namespace
}  // namespace lockstep::test
