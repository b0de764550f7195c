// Jobs over machines with networks of their own.
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <regex>
#include <vector>

#include "cli/nodes.h"
#include "support/machines.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

class Cluster {
 public:
  explicit Cluster(int machines) : machines_(machines) {}

  Process& start(int machine, const Words& options, const Words& program) {
    return run_as(machine, {}, options, program);
  }
  // `prefix` runs the command that follows it.
  Process& run_as(int machine, const Words& prefix, const Words& options, const Words& program) {
    Process::Settings settings;
    settings.environment = {"LOCKSTEP_JOB_KEY=secret of the test"};
    const Words command = prefix + Words{LOCKSTEP_PROGRAM, "run"} + options + program;
    launchers_.push_back(std::make_unique<Process>(machines_.on(machine, command), settings));
    return *launchers_.back();
  }
  Machines& machines() { return machines_; }

 private:
  Machines machines_;
  std::vector<std::unique_ptr<Process>> launchers_;
};

TEST(NodeMachinesMulti, RanksMeetAtTheAddressOfTheFirstNode) {
  Cluster cluster(3);
  for (const std::string& address : {Machines::ipv4(0), "[" + Machines::ipv6(0) + "]"}) {
    const ScratchFolder folder;
    const Words options{"--nnodes", "3", "--rdzv-endpoint", address};
    const Words program{LOCKSTEP_STEPPING_WORKER, folder.path("steps"), "5"};
    std::vector<Process*> launchers;
    for (int machine = 2; machine >= 0; --machine) {
      launchers.push_back(&cluster.start(
          machine,
          options + Words{"--node-rank", std::to_string(machine), "--nproc-per-node", std::to_string(machine + 1)},
          program));
    }
    std::string out;
    for (Process* launcher : launchers) {
      const Finished end = launcher->finish();
      EXPECT_EQ(end.exit_code, 0) << end.err;
      out += end.out;
    }
    EXPECT_TRUE(contains(out, "rank 0 of 6 begins at step 0 on 6 addresses")) << out;
    EXPECT_TRUE(contains(out, "rank 5 of 6 begins at step 0 on 6 addresses")) << out;
    EXPECT_EQ(read_file(folder.path("steps")), "5\n");
  }
}

TEST(NodeMachinesFault, AMachineThatCannotBeReachedIsLostAndTheOthersGoOn) {
  Cluster cluster(2);
  const ScratchFolder folder;
  const Words options{"--nnodes",       "1:2", "--rdzv-endpoint", Machines::ipv4(0),
                      "--max-restarts", "1",   "--rdzv-conf",     "last_call_timeout=20,silence=2"};
  // Both train for as long as it takes. The one that is left has some steps to go.
  const std::string steps = folder.path("steps");
  const Words program = shell("n=1000000; [ $WORLD_SIZE = 2 ] || n=$(($(cat " + steps + ") + 10)); exec " +
                              LOCKSTEP_STEPPING_WORKER + " " + steps + " $n");
  Process& first = cluster.start(0, options + Words{"--node-rank", "0"}, program);
  Process& second = cluster.start(1, options + Words{"--node-rank", "1"}, program);
  ASSERT_TRUE(wait_for([&] { return read_file(steps).size() > 2; })) << first.err_so_far() << second.err_so_far();
  cluster.machines().unplug(1);
  const Finished end = first.finish();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const std::string begins = "rank 0 of 1 begins at step ";
  const std::size_t at = end.out.find(begins);
  ASSERT_NE(at, std::string::npos) << end.out << end.err;
  const int step = std::stoi(end.out.substr(at + begins.size()));
  EXPECT_GE(step, 10);
  EXPECT_EQ(read_file(steps), std::to_string(step + 10) + "\n");
  EXPECT_TRUE(contains(end.err, "node 1 (host ") && contains(end.err, "was lost")) << end.err;
  // The other one has lost the launcher that serves.
  const Finished lost = second.finish();
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_TRUE(contains(lost.err, "lost the launcher that serves the rendezvous at " + Machines::ipv4(0))) << lost.err;
}

TEST(NodeMachinesFault, AnAddressThatNobodyHasIsNamed) {
  Cluster cluster(1);
  Process& launcher = cluster.start(
      0, {"--nnodes", "2", "--rdzv-endpoint", "10.77.0.99:4711", "--rdzv-conf", "join_timeout=1"}, {"true"});
  const Finished end = launcher.finish();
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(contains(end.err, "cannot meet the other nodes at 10.77.0.99:4711")) << end.err;
  EXPECT_TRUE(std::regex_search(end.err, std::regex(" attempts? in [0-9]+\\.[0-9] s"))) << end.err;
}

TEST(NodeMachinesFault, AnAddressThatThisMachineLacksIsNamed) {
  for (const char* option : {"--master-addr", "--rdzv-endpoint"}) {
    const Finished end = run_program({LOCKSTEP_PROGRAM, "run", option, "192.0.2.1", "true"});  // of examples alone
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_TRUE(contains(end.err, "'192.0.2.1' (--master-addr or --rdzv-endpoint) is not an address of this machine"))
        << end.err;
  }
}

// As Debian installs machines: /etc/hosts gives a machine's own name the address 127.0.1.1. The others have the name
// from elsewhere.
TEST(NodeMachinesMulti, NodesMeetAtANameThatIsLoopbackOnItsOwnMachine) {
  Cluster cluster(2);
  const ScratchFolder folder;
  folder.write("hosts0", "127.0.0.1 localhost\n127.0.1.1 nodea.site nodea\n");
  folder.write("hosts1", "127.0.0.1 localhost\n" + Machines::ipv4(0) + " nodea.site nodea\n127.0.1.1 nodeb\n");
  const Words ways[] = {{"--rdzv-endpoint", "nodea"}, {"--rdzv-endpoint", "nodea.site"}, {"--master-addr", "nodea"}};
  int number = 0;
  for (const Words& way : ways) {
    const std::string steps = folder.path("steps" + std::to_string(number++));
    std::vector<Process*> launchers;
    for (int machine = 0; machine < 2; ++machine) {
      const std::string hosts = folder.path("hosts" + std::to_string(machine));
      const std::string setup = "hostname " + std::string(machine == 0 ? "nodea" : "nodeb") + "; mount --bind " +
                                hosts + " /etc/hosts; exec \"$@\"";
      launchers.push_back(&cluster.run_as(machine, {"unshare", "--uts", "--mount", "sh", "-c", setup, "sh"},
                                          Words{"--nnodes", "2", "--node-rank", std::to_string(machine)} + way,
                                          {LOCKSTEP_STEPPING_WORKER, steps, "5"}));
    }
    for (Process* launcher : launchers) {
      const Finished end = launcher->finish();
      EXPECT_EQ(end.exit_code, 0) << end.err;
    }
    EXPECT_EQ(read_file(steps), "5\n");
  }
}

TEST(NodeMachinesFault, ALauncherSaysForWhichNodesItWaits) {
  Cluster cluster(1);
  Process& launcher =
      cluster.start(0, {"--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", Machines::ipv4(0) + ":4712"}, {"true"});
  EXPECT_TRUE(wait_for([&] {
    return contains(launcher.err_so_far(), "s at " + Machines::ipv4(0) + ":4712 for 1 of 2 nodes, missing: node 0");
  })) << launcher.err_so_far();
}

TEST(NodeMachinesMulti, AMachineWithoutIpv4) {
  const Finished end = run_program({"unshare", "--net", "sh", "-c",
                                    "ip link set lo up && ip -4 addr flush dev lo && exec " LOCKSTEP_PROGRAM
                                    " run --nproc-per-node 2 sh -c 'echo $MASTER_ADDR; exec " LOCKSTEP_PROGRAM
                                    " bench --sizes 4 --seconds 0'"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_TRUE(contains(end.out, "[rank 0]: ::1\n") && contains(end.out, "[rank 1]: ::1\n")) << end.out;
}

// An interface that is down lets programs listen, and nobody connect.
TEST(NodeMachinesFault, TheDoctorSeesThatThereIsNoLoopback) {
  for (const char* command : {"doctor", "bench"}) {
    const Finished end = run_program({"unshare", "--net", LOCKSTEP_PROGRAM, command});
    EXPECT_EQ(end.exit_code, 1);
    EXPECT_TRUE(contains(end.out + end.err, "a process cannot reach another one at 127.0.0.1")) << end.out << end.err;
    EXPECT_TRUE(contains(end.out + end.err, "the loopback interface is down")) << end.out << end.err;
  }
}

}  // namespace
}  // namespace lockstep::test
