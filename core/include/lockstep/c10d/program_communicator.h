// A communicator that the program has already, of MPI or of another library. The ranks of init_process_group find one
// another through it: InitOptions::communicator. For MPI mpi_communicator.h makes one.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"

namespace lockstep {

struct ProgramCommunicator {
  int rank = 0;
  int size = 1;
  // Collective over the ranks: puts the bytes `own` of every rank into `all`, by rank. Every rank gives the same number
  // of bytes. Only the thread inside init_process_group calls this function: three times if all goes well on one
  // machine, else up to eight times. kTimeout: another rank has not called by the deadline. The bytes hold the world's
  // key: whoever can read or change them can join the world.
  std::function<Status(std::span<const char> own, std::span<char> all, Deadline deadline)> all_gather = {};

  // For backend mpi: the communicator itself.
  struct Mpi {
    std::string library = {};     // "Open MPI", "MPICH", ...: of the mpi.h that the program was compiled with
    int handle = 0;               // of MPI_Comm_c2f
    bool threads = false;         // whether the level is at least MPI_THREAD_SERIALIZED
    std::string level_name = {};  // "MPI_THREAD_FUNNELED"
  };
  std::optional<Mpi> mpi = {};
};

}  // namespace lockstep
