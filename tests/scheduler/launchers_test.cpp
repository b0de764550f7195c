// Programs under Open MPI's mpirun (4 and 5), MPICH's (Hydra) and Python's torchrun.
#include "launchers.h"

#include <numeric>

#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class MpirunScheduler : public testing::TestWithParam<Mpi> {
 protected:
  static Finished run(int ranks, const Words& program) {
    Words words{GetParam().mpirun};
    words.insert(words.end(), GetParam().options.begin(), GetParam().options.end());
    const Words here = GetParam().name == "OpenMpi4" ? Words{"--mca", "oob_tcp_if_include", "lo"}
                       : GetParam().name == "Hydra"  ? Words{"-launcher", "fork"}
                                                     : Words{};
    words.insert(words.end(), here.begin(), here.end());
    words.insert(words.end(), {"-n", std::to_string(ranks)});
    words.insert(words.end(), program.begin(), program.end());
    Process job(words);
    Finished end = job.finish(std::chrono::seconds(60));
    EXPECT_TRUE(job.wait_until_no_descendant());
    return end;
  }
};

TEST_P(MpirunScheduler, ProgramsFindTheirWorld) {
  for (const int ranks : {1, 3}) expect_world(run(ranks, {LOCKSTEP_JOIN_WORLD}), {ranks}, GetParam().source);
}

TEST_P(MpirunScheduler, ContradictionsAreErrorsOnEveryRank) {
  const Finished end = run(2, {"sh", "-c", std::string("WORLD_SIZE=3 ") + LOCKSTEP_JOIN_WORLD + " || true"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const std::string line = "join_world: WORLD_SIZE=3 contradicts " + GetParam().size +
                           "=2. Unset WORLD_SIZE, or start that many processes\n";
  EXPECT_EQ(sorted_lines(end.err), line + line);
}

// Costs a start of each mpirun for each world.
TEST_P(MpirunScheduler, ProgramsGiveTheirCommunicator) {
  for (const int ranks : {1, 3}) {
    std::vector<int> local(ranks);
    std::iota(local.begin(), local.end(), 0);
    const Finished end = run(ranks, {GetParam().communicator_program});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(sorted_lines(end.out), communicator_lines(local)) << end.err;
  }
}

TEST_P(MpirunScheduler, BackendMpiIsOfOneMpi) {
  const Finished end = run(2, {GetParam().communicator_program, "mpi"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  if (GetParam().name != "Hydra") {
    EXPECT_EQ(sorted_lines(end.out), communicator_lines({0, 1})) << end.err;
  } else {
    EXPECT_NE(end.out.find("compiled with MPICH, and this build of Lockstep with Open MPI"), std::string::npos)
        << end.out;
    EXPECT_NE(end.out.find("then 2 ranks of MPI"), std::string::npos) << end.out;
  }
}

INSTANTIATE_TEST_SUITE_P(All, MpirunScheduler, testing::ValuesIn(kMpis),
                         [](const auto& info) { return info.param.name; });

Finished torchrun(const Words& options) {
  Words words{LOCKSTEP_PYTHON, "-m", "torch.distributed.run"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--no-python", LOCKSTEP_JOIN_WORLD});
  const ScratchFolder scratch;  // for its logs, which it does not delete
  Process::Settings settings;
  settings.environment = {"TMPDIR=" + scratch.path().native()};
  return Process(words, settings).finish(std::chrono::seconds(90));
}

TEST(TorchrunScheduler, ProgramsFindTheirWorld) {
  expect_world(torchrun({"--standalone", "--nproc-per-node", "2"}), {2}, "launcher variables");
}

}  // namespace
}  // namespace lockstep::test
