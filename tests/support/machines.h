// Machines for tests: network namespaces of this machine, joined by a switch (a bridge in a namespace of its own). They
// need root. They live as long as a process in each, and those die with the test, so nothing is left whatever happens;
// the machine's own network is not touched.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/process.h"

namespace lockstep::test {

class Machines {
 public:
  // Throws std::runtime_error with the reason when the system does not allow it.
  explicit Machines(int count);

  // Every machine has one interface, eth0, with these.
  static std::string ipv4(int machine) { return "10.77.0." + std::to_string(machine + 1); }
  static std::string ipv6(int machine) { return "fd77::" + std::to_string(machine + 1); }

  // A command line that runs `command` on a machine, and ends when this process does.
  std::vector<std::string> on(int machine, const std::vector<std::string>& command) const;
  // Runs it and waits; throws when it fails.
  std::string run(int machine, const std::vector<std::string>& command) const;
  void plug_in(int machine) const { run(machine, {"ip", "link", "set", "eth0", "up"}); }
  void unplug(int machine) const { run(machine, {"ip", "link", "set", "eth0", "down"}); }

 private:
  std::unique_ptr<Process> start_namespace() const;
  std::vector<std::string> inside(pid_t holder, const std::vector<std::string>& command) const;
  std::string run_in(pid_t holder, const std::vector<std::string>& command) const;

  std::unique_ptr<Process> switch_;
  std::vector<std::unique_ptr<Process>> machines_;
};

struct WorldOnMachines {
  std::vector<int> ranks;                  // on each machine, numbered in order
  std::string master = Machines::ipv4(0);  // an IPv6 address: the machines have no other kind
};

// The ranks of the current test, each a process that runs the test's body up to the same run_on_machines() and there
// fn(rank). The environment is what docs/launching.md says to set by hand.
class JobOnMachines {
 public:
  explicit JobOnMachines(const WorldOnMachines& world);

  Machines& machines() { return machines_; }
  int world() const { return static_cast<int>(processes_.size()); }
  Process& process(int rank) { return *processes_[rank]; }
  void kill(int rank);
  void kill_machine(int machine);
  // Every rank that was not killed ends without a failure.
  void finish(std::chrono::seconds limit = std::chrono::seconds(50));

 private:
  Machines machines_;
  std::vector<int> machine_of_;
  std::vector<bool> killed_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// In the test: starts the ranks, lets `meanwhile` act on them, and expects all to finish well. In a rank: fn(rank), and
// the end of the process; so all calls of one test do the same.
void run_on_machines(const WorldOnMachines& world, const std::function<void(int rank)>& fn,
                     const std::function<void(JobOnMachines&)>& meanwhile = {});

}  // namespace lockstep::test
