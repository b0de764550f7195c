// A Slurm cluster that a test starts: a login machine with the controller and munge, and nodes, each a namespace of its
// own for network, host name, processes and mounts (support/machines.h). Needs root, and the unpacked packages in
// LOCKSTEP_SLURM. Nothing outlives the test: a machine's processes die with its first one, and that with the test.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launchers.h"
#include "support/machines.h"
#include "support/scratch_folder.h"

namespace lockstep::test {

class SlurmCluster {
 public:
  // Nodes node1, node2, ... with four processors each, whatever this machine has. They share all folders with the login
  // machine. Two partitions: "all", and "urgent", whose jobs take the nodes of the others (30 s after a SIGTERM).
  // Throws when the cluster does not come up, with what its daemons say.
  explicit SlurmCluster(int nodes);
  // Ends everything. The test fails if something is left.
  ~SlurmCluster();

  // Runs a program on the login machine, where Slurm's tools and `lockstep` are in PATH.
  std::unique_ptr<Process> start(const Words& command, const Words& environment = {}) const;
  Finished run(const Words& command, const Words& environment = {}) const;
  // "sbatch --parsable" with these words; the job's number.
  std::string submit(const Words& words) const;
  // Whether the job has ended: it is neither waiting nor running.
  bool has_ended(const std::string& job) const;

  const ScratchFolder& folder() const { return folder_; }
  std::string log() const;  // of the daemons

 private:
  void write_configuration(int nodes) const;
  void start_daemon(int machine, const Words& command);

  const ScratchFolder folder_;
  Machines machines_;
  Words environment_;
  std::vector<std::unique_ptr<Process>> daemons_;
};

}  // namespace lockstep::test
