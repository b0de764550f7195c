// Programs under a Slurm that the test starts: a controller and one node, as child processes, on the loopback
// interface.
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "launchers.h"
#include "support/held_port.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

const std::string kRoot = LOCKSTEP_SLURM;
const std::string kLibraries = kRoot + "/usr/lib/x86_64-linux-gnu/slurm-wlm";

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return std::string(name).substr(0, std::string(name).find('.'));
}

class SlurmScheduler : public testing::Test {
 protected:
  SlurmScheduler() {
    const std::string folder = folder_.path().native();
    const std::string user = std::to_string(::geteuid());
    const std::string host = host_name();
    folder_.write("state/.keep", "");
    folder_.write("spool/.keep", "");
    // Without authentication, so only on the loopback interface. Always four processors, whatever the machine has.
    folder_.write(
        "slurm.conf",
        "ClusterName=test\nSlurmctldHost=" + host +
            "(127.0.0.1)\nSlurmctldPort=" + std::to_string(controller_port_.number()) +
            "\nSlurmdPort=" + std::to_string(node_port_.number()) + "\nSlurmUser=" + user + "\nSlurmdUser=" + user +
            "\nAuthType=auth/none\nCredType=cred/none\nMpiDefault=none\n"
            "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\nSlurmdParameters=config_overrides\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/linear\n"
            "SwitchType=switch/none\nSchedulerType=sched/builtin\nReturnToService=2\n"
            "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"
            "StateSaveLocation=" +
            folder + "/state\nSlurmdSpoolDir=" + folder + "/spool\nSlurmctldPidFile=" + folder +
            "/controller.pid\nSlurmdPidFile=" + folder + "/node.pid\nPluginDir=" + kLibraries + "\nNodeName=" + host +
            " NodeAddr=127.0.0.1 CPUs=4\n"
            "PartitionName=all Nodes=ALL Default=YES State=UP\n");
    settings_.environment = {"SLURM_CONF=" + folder + "/slurm.conf", "LD_LIBRARY_PATH=" + kLibraries};
    controller_ = start({kRoot + "/usr/sbin/slurmctld-wlm", "-D", "-c"});
    node_ = start({kRoot + "/usr/sbin/slurmd-wlm", "-D", "-c", "-d", kRoot + "/usr/sbin/slurmstepd-wlm"});
  }

  void SetUp() override {
    const bool idle = wait_for([&] { return run("sinfo", {"-h", "-o", "%T"}).out == "idle\n"; });
    ASSERT_TRUE(idle) << controller_->out_so_far() << node_->out_so_far();
  }

  ~SlurmScheduler() override {
    for (const auto& daemon : {node_.get(), controller_.get()}) {
      ::kill(daemon->pid(), SIGTERM);
      const Finished end = daemon->finish();
      EXPECT_TRUE(daemon->wait_until_no_descendant());
      if (HasFailure()) std::fputs((end.out + end.err).c_str(), stderr);
    }
  }

  Finished run(const std::string& tool, const Words& words) const {
    Words command{kRoot + "/usr/bin/" + tool};
    command.insert(command.end(), words.begin(), words.end());
    return start(command)->finish(std::chrono::seconds(60));
  }

 private:
  std::unique_ptr<Process> start(const Words& command) const { return std::make_unique<Process>(command, settings_); }

  const ScratchFolder folder_;
  const HeldPort controller_port_;
  const HeldPort node_port_;
  Process::Settings settings_;
  std::unique_ptr<Process> controller_;
  std::unique_ptr<Process> node_;
};

TEST_F(SlurmScheduler, ProgramsFindTheirWorld) {
  for (const int ranks : {1, 2, 4}) {
    expect_world(run("srun", {"-n", std::to_string(ranks), LOCKSTEP_JOIN_WORLD}), ranks, "Slurm");
  }
  // A step with fewer tasks than its batch job; and two such jobs, one after the other.
  const Finished step = run("salloc", {"-Q", "-n", "3", kRoot + "/usr/bin/srun", "-n", "2", LOCKSTEP_JOIN_WORLD});
  expect_world(step, 2, "Slurm");
  // The allocation's shell is not a task: a program that it starts is alone.
  expect_world(run("salloc", {"-Q", "-n", "3", LOCKSTEP_JOIN_WORLD}), 1, "not distributed");
}

TEST_F(SlurmScheduler, OurLauncherWithinATaskDecides) {
  const Finished end =
      run("srun", {"-n", "1", "-c", "2", LOCKSTEP_PROGRAM, "run", "--nproc-per-node", "2", LOCKSTEP_JOIN_WORLD});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  std::string out = end.out;
  for (const std::string prefix : {"[rank 0]: ", "[rank 1]: "}) {
    const std::size_t at = out.find(prefix);
    ASSERT_NE(at, std::string::npos) << end.out;
    out.erase(at, prefix.size());
  }
  EXPECT_EQ(sorted_lines(out), world_lines(2, "launcher variables"));
}

}  // namespace
}  // namespace lockstep::test
