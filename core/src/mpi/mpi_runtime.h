// MPI in this process: one for all groups, initialised at first use, finalised when the program exits.
//
// Threads: MPI is used at level MPI_THREAD_SERIALIZED: every call is made under mutex(). A program that initialises MPI
// itself must ask for that level (or MULTIPLE, if it calls MPI while groups are in use), and finalises it itself.
//
// Exit: MPI_Finalize waits for all ranks and would hang if one is gone. It is called only when every rank has reached
// its exit in order; a barrier with a deadline finds that out. Otherwise the process just ends, and mpirun ends the
// others, as it does after any rank that ends without finalising.
#pragma once

#include <ATen/ATen.h>
#include <mpi.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c10d/backend/held_memory.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/reduce/types.h"

namespace lockstep {

// Ends the error of a group that comes too late.
inline constexpr const char* kMpiFinalised =
    "MPI was finalised already in this process; call MPI_Finalize after the last process group";

// The error for `code` of an MPI call; ok for MPI_SUCCESS. `what` names the call.
Status mpi_status(int code, const std::string& what);

class MpiRuntime {
 public:
  // Initialises MPI if nobody has. Throws BackendError when MPI was finalised already, or initialised with a lower
  // thread level than needed.
  static MpiRuntime& of_process();

  // Of this process, among the ranks of which groups are made: those of MPI_COMM_WORLD, or of the communicator that
  // make_groups_of() was given.
  int rank() LOCKSTEP_EXCLUDES(mutex_);
  int size() LOCKSTEP_EXCLUDES(mutex_);

  // From now on, until the last group is left, groups are made of the ranks of this communicator of the program's, of
  // which a duplicate is kept. Collective over its ranks.
  Status make_groups_of(MPI_Comm communicator) LOCKSTEP_EXCLUDES(mutex_);

  Mutex& mutex() LOCKSTEP_ANNOTATION(lock_returned(mutex_)) { return mutex_; }
  // Call the next three under mutex(). The compiler cannot check that, as callers pass functions to MpiCall::start.
  // False once MPI was finalised, by this class or by the program.
  bool is_usable() LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
  // The type for one element of this many bytes (1, 2, 4, 8 or 16) where MPI only moves it.
  MPI_Datatype element_type(std::int64_t bytes) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
  struct Reduction {
    MPI_Datatype type;
    MPI_Op op;
  };
  // For any type and operation that comm::is_supported allows; for kAvg and kPremulSum, the sum.
  Reduction reduction(comm::DataType type, comm::ReduceOp op) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;

  // A communicator of these ranks, in this order, which returns its errors. Collective over them. After an error no
  // group will be left that ends make_groups_of(), so if none is in use, make_communicator() ends it.
  Result<MPI_Comm> make_communicator(const std::vector<int>& ranks) LOCKSTEP_EXCLUDES(mutex_);

  // Count groups in use. `timeout`: how long the exit of this process waits for that of other ranks, once all are left.
  void enter_group(std::chrono::milliseconds timeout) LOCKSTEP_EXCLUDES(mutex_);
  void leave_group() LOCKSTEP_EXCLUDES(mutex_);
  // From now on this process ends without finalising: some rank will not reach its exit.
  void give_up_finalising() LOCKSTEP_EXCLUDES(mutex_);
  // Keeps memory that MPI may still use, tensors and others, until the process ends.
  void keep_for_ever(std::vector<HeldMemory> tensors, std::vector<std::shared_ptr<const void>> others)
      LOCKSTEP_EXCLUDES(mutex_);

 private:
  MpiRuntime();
  static void at_exit();
  void finalise() LOCKSTEP_EXCLUDES(mutex_);
  void forget_base() LOCKSTEP_REQUIRES(mutex_);
  bool all_ranks_exit(std::chrono::milliseconds timeout) LOCKSTEP_REQUIRES(mutex_);

  const Origin origin_;
  bool own_ = false;  // initialised by this class
  Mutex mutex_;
  MPI_Comm base_ LOCKSTEP_GUARDED_BY(mutex_) = MPI_COMM_WORLD;  // groups are made of its ranks
  bool finalised_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool in_order_ LOCKSTEP_GUARDED_BY(mutex_) = true;
  int groups_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::chrono::milliseconds timeout_ LOCKSTEP_GUARDED_BY(mutex_);  // the longest of a group
  MPI_Datatype types_[5] LOCKSTEP_GUARDED_BY(mutex_);              // by logarithm of the size
  MPI_Op ops_[comm::kNumDataTypes][comm::kNumReduceOps] LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<HeldMemory> kept_tensors_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const void>> kept_others_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
