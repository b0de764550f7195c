// Programs under Open MPI's mpirun and Python's torchrun.
#include "launchers.h"

#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

Finished mpirun(int ranks, const Words& program) {
  Words words{LOCKSTEP_MPIRUN,      "--allow-run-as-root", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo", "-n",
              std::to_string(ranks)};
  words.insert(words.end(), program.begin(), program.end());
  return Process(words).finish(std::chrono::seconds(60));
}

TEST(OpenMpiScheduler, ProgramsFindTheirWorld) {
  for (const int ranks : {1, 2, 4}) expect_world(mpirun(ranks, {LOCKSTEP_JOIN_WORLD}), ranks, "Open MPI");
}

TEST(OpenMpiScheduler, ContradictionsAreErrorsOnEveryRank) {
  const Finished end = mpirun(2, {"sh", "-c", std::string("WORLD_SIZE=3 ") + LOCKSTEP_JOIN_WORLD + " || true"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(sorted_lines(end.err),
            sorted_lines(std::string("join_world: WORLD_SIZE=3 contradicts OMPI_COMM_WORLD_SIZE=2. Unset WORLD_SIZE, "
                                     "or start that many processes\n"
                                     "join_world: WORLD_SIZE=3 contradicts OMPI_COMM_WORLD_SIZE=2. Unset WORLD_SIZE, "
                                     "or start that many processes\n")));
}

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
  expect_world(torchrun({"--standalone", "--nproc-per-node", "2"}), 2, "launcher variables");
}

}  // namespace
}  // namespace lockstep::test
