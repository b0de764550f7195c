// Which world am I in: rank, sizes and the master's address, from whatever started this process.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

struct World {
  int rank = 0;  // 0 to world_size - 1
  int world_size = 1;
  int local_rank = 0;  // among the processes of this node
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  // Where rank 0 can be reached. Empty and 0 when nothing says so and it cannot be worked out (launcher variables
  // without MASTER_ADDR; mpirun over several nodes): then it has to come from MASTER_ADDR and MASTER_PORT.
  std::string master_addr;
  int master_port = 0;
  // For people: "arguments", "launcher variables", "Slurm", "Open MPI", "PMI", "not distributed", "process group"
  // (found out by the ranks of one among themselves).
  std::string source;
  // Whether somebody said local_rank (arguments, variables, a world of one); else it is worked out, as below.
  bool local_rank_known = false;
  // What the ranks of this job alone know: LOCKSTEP_JOB_KEY, else what Open MPI's mpirun gives each of its jobs. Empty
  // without either.
  std::string job_key = {};
};

// What the caller knows better than the environment.
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

// A pure function of its arguments. The first of these that says a rank decides:
//
//   1. explicit arguments (rank and world_size together)
//   2. launcher variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK (lockstep run, torchrun and
//      Kubernetes set them)
//   3. Slurm, inside a step (srun): SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, ... An sbatch script or salloc shell
//      itself is no step and counts as not distributed.
//   4. mpirun: OMPI_COMM_WORLD_*, or PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS. When it runs inside a Slurm
//      step that started something else (its own daemons), mpirun counts.
//   5. otherwise rank 0 of 1, "not distributed"
//
// Local values and node numbers that the source lacks come from a scheduler (3, 4) that knows this process by the same
// rank and world size. Single arguments replace what the environment says. MASTER_ADDR and MASTER_PORT are used
// wherever they are set; otherwise a scheduler's world has its master on 127.0.0.1 when it is on one node, else (Slurm)
// on the first node of the step, at a port between 10000 and 29999 that follows from the job's id, so that all ranks
// find the same one. (Hydra's mpirun gives its jobs no id: two of them at a time on one machine need different
// MASTER_PORTs.)
//
// What nothing says is worked out: without local variables, a world whose master is a loopback address is on one node;
// otherwise every process counts as alone on its node, as in Kubernetes. mpirun does not number nodes; they count as
// filled one after the other.
//
// Errors, kInvalidArgument, name the variable and its value: not a number, a part missing (RANK without WORLD_SIZE), or
// contradictions (rank not below the world size; an argument against RANK or WORLD_SIZE; WORLD_SIZE against Slurm's).
Result<World> resolve_world(const WorldArguments& arguments, const Environment& environment);

// The same with this process's variables.
Result<World> resolve_world(const WorldArguments& arguments = {});

// The world that this process has joined, whatever it was told of: init_process_group sets it, destroy_process_group
// takes it away. So layers that know nothing of process groups, such as data, see where they are. Thread-safe.
void set_joined_world(std::optional<World> world);
std::optional<World> joined_world();

}  // namespace lockstep::launch
