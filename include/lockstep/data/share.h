// Which part of the data, and of the machine, is this process's.
#pragma once

#include <cstdint>

#include "lockstep/base/environment.h"

namespace lockstep::data {

// A rank's part of the work.
struct Share {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t local_rank = 0;  // among the processes of this machine
  std::int64_t local_world_size = 1;
  std::int64_t nodes = 1;  // machines
};

// That of the default process group, however it was made (init_process_group); before there is one, what share_from
// says. Throws DataError.
Share share_of_process();

// From what started this process: launcher variables, Slurm or MPI; the whole (0 of 1) when nothing did. The same rules
// as init_process_group's (launch/world.h). Throws DataError when the variables contradict each other.
Share share_from(const Environment& environment);

}  // namespace lockstep::data
