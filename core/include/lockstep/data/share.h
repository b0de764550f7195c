// This process's share of the data and of its machine.
#pragma once

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "lockstep/base/environment.h"

namespace lockstep::data {

// A rank among all ranks, and among those of its machine.
struct Share {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t local_rank = 0;  // among the processes of this machine
  std::int64_t local_world_size = 1;
  std::int64_t nodes = 1;  // machines
  // Where rank and world_size come from, for messages: "of the process group", "of launcher variables", "of Slurm",
  // "no process group", ...
  std::string source = {};
};

// The share from the default process group, whatever it was made from (init_process_group). Before there is a group:
// share_from the environment of this process. Throws DataError.
Share share_of_process();

// The share of this process in `group`, a c10d process group such as one of new_group() or of a DeviceMesh; null: as
// share_of_process(). Local numbers are those of the process: how its machine is shared does not depend on the group.
// Throws DataError (kInvalidArgument) when this process is no member.
Share share_in_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// The share from the variables of a launcher, Slurm or MPI; rank 0 of 1 without them. The rules are those of
// init_process_group (launch/world.h). Throws DataError when the variables contradict each other.
Share share_from(const Environment& environment);

}  // namespace lockstep::data
