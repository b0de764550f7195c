// Ranks of Open MPI's mpirun (4 and 5) and of MPICH's (Hydra) on two machines with networks and names of their own. No
// address, port or key is given.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include "launchers.h"
#include "support/machines.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class MpirunMachinesScheduler : public testing::TestWithParam<Mpi> {
 protected:
  MpirunMachinesScheduler() : machines_(2) {
    folder_.write("home/.keep", "");
    std::string names = "127.0.0.1 localhost\n";
    std::string cases;
    for (int machine = 0; machine < 2; ++machine) {
      names += fmt::format("{} {}\n", Machines::ipv4(machine), name_of(machine));
      std::string words;
      for (const std::string& word : enter(machine)) words += "'" + word + "' ";
      cases += fmt::format("{}) set -- {} \"$*\";; ", name_of(machine),
                           words + "env -i HOME=" + home() + " PATH=/usr/bin:/bin sh -c");
    }
    folder_.write("hosts", names);
    // Called as ssh is: options, a host, words for its shell. Nothing of this environment goes along.
    folder_.write("ssh", "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\ncase $host in " +
                             cases + "esac\nexec \"$@\"\n");
    ::chmod(folder_.path("ssh").c_str(), 0755);
  }

  static std::string name_of(int machine) { return fmt::format("node-{}", machine + 1); }
  std::string home() const { return folder_.path("home"); }
  Words enter(int machine) const {
    return machines_.on(
        machine, {"unshare", "--uts", "--mount", "sh", "-c", kEnter, "enter", folder_.path("hosts"), name_of(machine)});
  }
  // Starts mpirun on the first machine.
  Finished run(const std::string& hosts, int ranks, const std::string& program) const {
    Words words = enter(0);
    const auto add = [&](const Words& more) { words.insert(words.end(), more.begin(), more.end()); };
    add({"env", "-u", "LOCKSTEP_JOB_KEY", "XDG_STATE_HOME=", "HOME=" + home(), GetParam().mpirun});
    add(GetParam().options);
    for (const std::string& word : GetParam().on_machines) words.push_back(word == "SSH" ? folder_.path("ssh") : word);
    add({hosts, "-n", std::to_string(ranks), program});
    Process job(words);
    Finished end = job.finish(std::chrono::seconds(90));
    EXPECT_TRUE(job.wait_until_no_descendant());
    return end;
  }

  const ScratchFolder folder_;
  const Machines machines_;
};

TEST_P(MpirunMachinesScheduler, RanksFindOneAnother) {
  expect_world(run("node-1:2,node-2:2", 4, LOCKSTEP_JOIN_WORLD), {2, 2}, GetParam().source);
}

// Rank 0 of the communicator is not where mpirun is.
TEST_P(MpirunMachinesScheduler, ProgramsGiveTheirCommunicator) {
  const Finished end = run("node-1:2,node-2:2", 4, GetParam().communicator_program);
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(sorted_lines(end.out), communicator_lines({0, 1, 0, 1})) << end.err;
}

INSTANTIATE_TEST_SUITE_P(All, MpirunMachinesScheduler, testing::ValuesIn(kMpis),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::test
