// The world of this process: rank, sizes and the master's address, as the program that started this process set them.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// What told this process its rank.
enum class WorldSource {
  kNotDistributed,
  kArguments,
  kLauncher,  // launcher variables
  kSlurm,
  kOpenMpi,
  kPmi,
  kProcessGroup,  // the ranks of a group found out their ranks together
};

struct World {
  int rank = 0;  // 0 to world_size - 1
  int world_size = 1;
  int local_rank = 0;  // among the processes of this node
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  // Where rank 0 can be reached. Empty and 0 if the address is not set and cannot be derived (launcher variables
  // without MASTER_ADDR; Intel MPI over several nodes). Then the user must set MASTER_ADDR and MASTER_PORT.
  std::string master_addr;
  int master_port = 0;
  // For messages: "arguments", "launcher variables", "Slurm", "Open MPI", "PMI", "not distributed", or "process group".
  std::string source;
  WorldSource source_kind = WorldSource::kNotDistributed;  // the same, for comparisons
  // Whether local_rank was given (arguments, variables, a world of size 1). If not, it is derived as described below.
  bool local_rank_known = false;
  // The secret that only the ranks of this job know: LOCKSTEP_JOB_KEY, else the key that Open MPI's mpirun gives each
  // job. Empty if there is none.
  std::string job_key = {};
};

// Values that the caller knows. resolve_world says how they combine with the environment.
struct WorldArguments {
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::optional<int> local_rank = {};
  std::optional<int> local_world_size = {};
  std::optional<int> node_rank = {};
  std::optional<int> num_nodes = {};
  std::optional<std::string> master_addr = {};
  std::optional<int> master_port = {};
};

// A pure function of its arguments. The first of these sources that gives a rank decides:
//
//   1. explicit arguments (rank and world_size together)
//   2. launcher variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE (lockstep run,
//      torchrun and Kubernetes set them)
//   3. Slurm, inside a step (srun): SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, ... An sbatch script or salloc shell
//      itself is not a step and counts as not distributed.
//   4. mpirun: OMPI_COMM_WORLD_*, or PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS. It wins over a Slurm step
//      with another rank or size, because mpirun has started its daemons in that step.
//   5. otherwise rank 0 of 1, "not distributed"
//
// Local values and node numbers that the source lacks come from a scheduler (3, 4) that gives this process the same
// rank and world size. Single arguments replace values of the environment. MASTER_ADDR and MASTER_PORT are used if they
// are set. Otherwise, the master of a scheduler's world is 127.0.0.1 if the world is on one node, else the first
// node of the step (Slurm) or the machine where mpirun runs. The port is between 10000 and 29999 and derived from the
// job's id, so all ranks find the same port. (Intel MPI gives its jobs no id: two jobs at a time need different
// MASTER_PORTs.)
//
// Other values are derived. Without local variables, a world whose master is a loopback address (or 0.0.0.0, ::) is on
// one node; otherwise every process counts as alone on its node, as in Kubernetes. mpirun does not number nodes: they
// count as filled one after another.
//
// Errors are kInvalidArgument and name the variable and its value: not a number, a missing part (RANK without
// WORLD_SIZE), or a contradiction (rank not below the world size; an argument against RANK or WORLD_SIZE; WORLD_SIZE
// against Slurm's).
Result<World> resolve_world(const WorldArguments& arguments, const Environment& environment);

// resolve_world with this process's variables, and with the values that a proxy of Hydra's mpirun has on its command
// line.
Result<World> resolve_world(const WorldArguments& arguments = {});

// The world that this process has joined: init_process_group sets it, destroy_process_group clears it. Layers that do
// not know process groups, such as data, find their rank here. Thread-safe.
void set_joined_world(std::optional<World> world);
std::optional<World> joined_world();

}  // namespace lockstep::launch
