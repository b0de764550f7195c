// Machines for tests: network namespaces of this machine, joined by a switch (a bridge in a namespace of its own). They
// need root. Each lives as long as a process in it, and these processes die with the test, so nothing is ever left. The
// machine's own network is not touched.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/containers.h"
#include "support/process.h"

namespace lockstep::test {

class Machines {
 public:
  // Throws std::runtime_error with the reason when the system does not allow it.
  explicit Machines(int count);

  // Every machine has one interface, eth0, with these addresses.
  static std::string ipv4(int machine) { return "10.77.0." + std::to_string(machine + 1); }
  static std::string ipv6(int machine) { return "fd77::" + std::to_string(machine + 1); }

  // A command line that runs `command` on a machine; the command is killed when this process ends.
  std::vector<std::string> on(int machine, const std::vector<std::string>& command) const;
  // Runs it and waits; throws when it fails.
  std::string run(int machine, const std::vector<std::string>& command) const;
  void plug_in(int machine) const { run(machine, {"ip", "link", "set", "eth0", "up"}); }
  void unplug(int machine) const { run(machine, {"ip", "link", "set", "eth0", "down"}); }
  // The interface stays up, but nothing passes: nobody gets an error.
  void cut(int machine) const { run_in(switch_->pid(), {"ip", "link", "set", port_of(machine), "nomaster"}); }
  void mend(int machine) const { run_in(switch_->pid(), {"ip", "link", "set", port_of(machine), "master", "bridge"}); }
  // Cuts, and mends after `time`: then the process ends.
  std::unique_ptr<Process> cut_for(int machine, std::chrono::milliseconds time) const;
  // From now on this thread, and threads that it starts, have the network of the machine.
  void enter(int machine) const;

 private:
  static std::string port_of(int machine) { return "port" + std::to_string(machine); }
  std::unique_ptr<Process> start_namespace() const;
  std::vector<std::string> inside(pid_t holder, const std::vector<std::string>& command) const;
  std::string run_in(pid_t holder, const std::vector<std::string>& command) const;

  std::unique_ptr<Process> switch_;
  std::vector<std::unique_ptr<Process>> machines_;
};

struct WorldOnMachines {
  std::vector<int> ranks;                  // on each machine, numbered in order
  std::string master = Machines::ipv4(0);  // with an IPv6 address the machines have only IPv6
  std::vector<Container> containers = {};  // by rank; empty: none
};

// The ranks of the current test. Each is a process that runs the test's body up to the same run_on_machines() and calls
// fn(rank) there. The environment is the one that docs/several_machines.md says to set by hand.
class JobOnMachines {
 public:
  explicit JobOnMachines(const WorldOnMachines& world);

  Machines& machines() { return machines_; }
  int world() const { return static_cast<int>(processes_.size()); }
  Process& process(int rank) { return *processes_[rank]; }
  void kill(int rank);
  void kill_machine(int machine);
  // Every rank that was not killed ends without a failure.
  void finish(std::chrono::seconds limit = std::chrono::seconds(100));

 private:
  Machines machines_;
  std::vector<int> machine_of_;
  std::vector<bool> killed_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// In the test: starts the ranks, calls `meanwhile` to act on them, and expects all to succeed. In a rank: calls
// fn(rank) and ends the process. A rank always runs its fn at the first call, so all calls of one test must do the
// same.
void run_on_machines(const WorldOnMachines& world, const std::function<void(int rank)>& fn,
                     const std::function<void(JobOnMachines&)>& meanwhile = {});

}  // namespace lockstep::test
