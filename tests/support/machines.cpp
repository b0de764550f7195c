#include "support/machines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "lockstep/base/fd.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

constexpr const char* kRankVariable = "LOCKSTEP_TEST_ON_MACHINES";

ino_t network_of(const std::string& process) {
  struct stat info {};
  return stat(fmt::format("/proc/{}/ns/net", process).c_str(), &info) == 0 ? info.st_ino : 0;
}

std::string current_test_name() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("{}.{}", test->test_suite_name(), test->name());
}

}  // namespace

Machines::Machines(int count) {
  switch_ = start_namespace();
  run_in(switch_->pid(), {"ip", "link", "add", "bridge", "type", "bridge"});
  run_in(switch_->pid(), {"ip", "link", "set", "bridge", "up"});
  for (int machine = 0; machine < count; ++machine) {
    machines_.push_back(start_namespace());
    const std::string port = port_of(machine);
    run_in(switch_->pid(), {"ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns",
                            std::to_string(machines_.back()->pid())});
    run_in(switch_->pid(), {"ip", "link", "set", port, "master", "bridge", "up"});
    run(machine, {"ip", "link", "set", "lo", "up"});
    run(machine, {"ip", "address", "add", ipv4(machine) + "/24", "dev", "eth0"});
    run(machine, {"ip", "address", "add", ipv6(machine) + "/64", "dev", "eth0", "nodad"});
    run(machine, {"ip", "link", "set", "eth0", "up"});
  }
  for (int machine = 0; machine < count; ++machine) {
    const auto is_up = [&] {
      return run(machine, {"ip", "link", "show", "eth0"}).find("LOWER_UP") != std::string::npos;
    };
    if (!wait_for(is_up)) throw std::runtime_error("a test machine's link does not come up");
  }
}

std::unique_ptr<Process> Machines::start_namespace() const {
  // Five minutes: no test takes longer, and a process that is left by accident ends by itself.
  auto holder = std::make_unique<Process>(
      std::vector<std::string>{"setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "300"});
  const ino_t own = network_of("self");
  const bool made = wait_for([&] {
    const ino_t its = network_of(std::to_string(holder->pid()));
    return its == 0 || its != own;
  });
  if (!made || network_of(std::to_string(holder->pid())) == 0) {
    throw std::runtime_error(
        "this test needs network namespaces, and `unshare --net` did not make one: run it as root (in a container: "
        "with the capability SYS_ADMIN and NET_ADMIN)");
  }
  return holder;
}

std::vector<std::string> Machines::inside(pid_t holder, const std::vector<std::string>& command) const {
  std::vector<std::string> full{
      "setpriv", "--pdeathsig", "KILL", "nsenter", fmt::format("--net=/proc/{}/ns/net", holder), "--"};
  full.insert(full.end(), command.begin(), command.end());
  return full;
}

std::string Machines::run_in(pid_t holder, const std::vector<std::string>& command) const {
  const Finished finished = run_program(inside(holder, command));
  if (finished.exit_code != 0) {
    throw std::runtime_error(fmt::format("this test needs to set up networks, as root: `{}` ended with {}: {}",
                                         fmt::join(command, " "), finished.exit_code, finished.err));
  }
  return finished.out;
}

std::vector<std::string> Machines::on(int machine, const std::vector<std::string>& command) const {
  return inside(machines_[machine]->pid(), command);
}

std::string Machines::run(int machine, const std::vector<std::string>& command) const {
  return run_in(machines_[machine]->pid(), command);
}

std::unique_ptr<Process> Machines::cut_for(int machine, std::chrono::milliseconds time) const {
  const std::string set = "ip link set " + port_of(machine);
  const std::string seconds = fmt::format("{:.3f}", std::chrono::duration<double>(time).count());
  return std::make_unique<Process>(
      inside(switch_->pid(), {"sh", "-c", set + " nomaster; sleep " + seconds + "; " + set + " master bridge"}));
}

void Machines::enter(int machine) const {
  const std::string path = fmt::format("/proc/{}/ns/net", machines_[machine]->pid());
  const Fd space(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!space.valid() || setns(space.get(), CLONE_NEWNET) != 0)
    throw std::runtime_error("this test needs to enter networks, as root: " + path);
}

JobOnMachines::JobOnMachines(const WorldOnMachines& world) : machines_(static_cast<int>(world.ranks.size())) {
  int size = 0;
  for (const int ranks : world.ranks) size += ranks;
  if (world.master.find(':') != std::string::npos) {
    for (int machine = 0; machine < static_cast<int>(world.ranks.size()); ++machine)
      machines_.run(machine, {"ip", "-4", "address", "flush", "dev", "eth0"});
  }
  for (int machine = 0; machine < static_cast<int>(world.ranks.size()); ++machine) {
    for (int local = 0; local < world.ranks[machine]; ++local) {
      const int rank = static_cast<int>(processes_.size());
      Process::Settings settings;
      settings.environment = {fmt::format("{}={}", kRankVariable, rank),
                              fmt::format("RANK={}", rank),
                              fmt::format("WORLD_SIZE={}", size),
                              fmt::format("LOCAL_RANK={}", local),
                              fmt::format("LOCAL_WORLD_SIZE={}", world.ranks[machine]),
                              "MASTER_ADDR=" + world.master,
                              "MASTER_PORT=29500",
                              "LOCKSTEP_JOB_KEY=secret of the test",
                              "GTEST_TOTAL_SHARDS=1",
                              "GTEST_SHARD_INDEX=0",
                              "GTEST_OUTPUT="};
      const std::string self = std::filesystem::read_symlink("/proc/self/exe");
      std::vector<std::string> command{self, "--gtest_filter=" + current_test_name(), "--gtest_brief=1"};
      if (!world.containers.empty()) {
        settings.environment.emplace_back("LOCKSTEP_LOG_LEVEL=info");
        command = inside(world.containers[static_cast<std::size_t>(rank)], command);
      }
      processes_.push_back(std::make_unique<Process>(machines_.on(machine, command), settings));
      machine_of_.push_back(machine);
    }
  }
  killed_.resize(processes_.size());
}

void JobOnMachines::kill(int rank) {
  killed_[rank] = true;
  ::kill(processes_[rank]->pid(), SIGKILL);
}

void JobOnMachines::kill_machine(int machine) {
  for (int rank = 0; rank < world(); ++rank) {
    if (machine_of_[rank] == machine) kill(rank);
  }
}

void JobOnMachines::finish(std::chrono::seconds limit) {
  for (int rank = 0; rank < world(); ++rank) {
    const Finished finished = processes_[rank]->finish(limit);
    if (killed_[rank]) continue;
    EXPECT_EQ(finished.exit_code, 0) << "rank " << rank << ":\n" << finished.out << finished.err;
  }
}

void run_on_machines(const WorldOnMachines& world, const std::function<void(int rank)>& fn,
                     const std::function<void(JobOnMachines&)>& meanwhile) {
  if (const char* rank = std::getenv(kRankVariable)) {
    fn(std::atoi(rank));
    std::fflush(stdout);
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  }
  const Leftovers before = Leftovers::now();
  {
    JobOnMachines job(world);
    if (meanwhile) meanwhile(job);
    job.finish();
  }
  expect_nothing_left(before);
}

}  // namespace lockstep::test
