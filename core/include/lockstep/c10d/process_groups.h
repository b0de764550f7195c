// The world of ranks, groups of them, and this process's rank in each.
//
// A ProcessGroup is LibTorch's own c10d::ProcessGroup, which holds one c10d::Backend per kind of device. Lockstep's
// functions call the backend of the tensor's device directly, past LibTorch's dispatcher. One handle can carry NCCL for
// GPU tensors beside the CPU engine. It works with everything else that is written against c10d.
//
// Ranks in this interface are ranks of the world, as in torch.distributed, unless a function says "group rank".
// Everything here throws (lockstep/c10d/errors.h) and may be called from several threads, but calls that make or
// destroy the world or a group must not overlap.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "lockstep/base/call_site.h"
#include "lockstep/base/fork.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/store/store.h"

namespace lockstep {

struct ProgramCommunicator;  // lockstep/c10d/program_communicator.h

// Null stands for the default group, the world.
using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroup>;

// Options of a backend (PyTorch's pg_options). Only nccl has some: c10d::ProcessGroupNCCL::Options, for the priority of
// its streams and NCCL's own configuration. A group takes a copy, and puts its own timeout, name and ranks into it.
// Options of a backend that the group does not have are an error.
using BackendOptions = c10::intrusive_ptr<c10d::Backend::Options>;

struct InitOptions {
  // Where ranks find one another:
  //   - "": the first of these that is there: launcher variables, with which rank and world_size below must agree; rank
  //     and world_size below; the variables of Slurm or mpirun. If none of them is there, a world of one rank, without
  //     any network
  //   - "env://": MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK; a missing one is an error
  //   - "tcp://host:port": rank 0 listens there
  //   - "file:///path": a file that all ranks reach
  std::string init_method = {};
  // -1: read from the environment.
  int rank = -1;
  int world_size = -1;
  // Of joining, and of each operation without a timeout of its own. A shorter timeout finds a lost rank earlier.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // When a rank has waited this long, it logs one warning for this wait: who is missing, and where every rank is. The
  // patience holds for all groups of the process. 0, or longer than the timeout: no warnings. Not set:
  // LOCKSTEP_PATIENCE (seconds), else 30 s. Only backend lockstep warns.
  std::optional<std::chrono::milliseconds> patience = std::nullopt;
  // The group's name in errors. The ranks find one another by this name, so it is the same on all ranks. At most 1024
  // bytes; "" is "world".
  std::string group_name = {};
  // Used instead of init_method; needs rank and world_size.
  std::shared_ptr<comm::Store> store = {};
  // The world is the ranks of a communicator that the program has already, and the ranks find one another through it.
  // mpi_communicator(comm) (lockstep/c10d/mpi_communicator.h) makes one from an MPI_Comm. Give no init_method, store,
  // rank and world_size beside it.
  std::shared_ptr<const ProgramCommunicator> communicator = {};
  BackendOptions backend_options = nullptr;  // null: the backend's defaults
  // Prepares for reconfigure() (lockstep/c10d/reconfigure.h), which then needs no handles: every rank opens a small
  // store, with a thread, and tells the others where it is. The same on all ranks. (In PyTorch such a world is not
  // there until the first reconfigure; here it is.)
  bool enable_reconfigure = false;
};

// Makes the world. Blocks until every rank is there; after `timeout` throws an error that lists the ranks that came and
// the ranks that did not. Backends (docs/backends.md says when to use which):
//   - "lockstep": the CPU engine, for CPU tensors and, through pinned host memory, CUDA tensors; "gloo" is the same
//   - "mpi": the same tensors, over the MPI that started the job
//   - "nccl": CUDA tensors alone; for programs that have called load_cuda() or link lockstep::nccl
//   - "cpu:lockstep,cuda:nccl": a backend for each device
//   - "": "cpu:lockstep,cuda:nccl" if the program may use "nccl" and the machine has a GPU, else "lockstep"
//
// If a backend is unknown or cannot be used here, the error says why, and which backends there are.
void init_process_group(std::string_view backend = "", const InitOptions& options = {});

// Leaves `group` (null: the world and every group made from it). Ranks that still wait for this rank get an error. If
// all groups work, waits up to 5 s for collectives under way; waits for running callbacks of futures too. When the
// world works, the rank that serves the store then waits until the other ranks have left, for up to 5 s more. (This is
// rank 0, unless a launcher serves the store; after reconfigure() it is the member with the lowest earlier rank.) Safe
// after errors and when called twice. Does nothing without a world.
void destroy_process_group(const ProcessGroup& group = nullptr);

// Breaks `group` for all its ranks: their operations fail with `reason`. Use it for errors that only this rank sees.
void abort_process_group(const std::string& reason, const ProcessGroup& group = nullptr);

// Whether this build has a backend of this name ("lockstep", "gloo", "mpi", "nccl"; "": any).
bool is_available(std::string_view backend = "");
// Whether there is a world now, or one that a reconfigure() has left and not formed anew because it failed.
bool is_initialized();

// The world as a handle.
ProcessGroup default_group();

// This process's group rank; -1 when it is no member.
int get_rank(const ProcessGroup& group = nullptr);
int get_world_size(const ProcessGroup& group = nullptr);
// This process's number among the job's processes on this machine.
int get_local_rank();
// "lockstep", "mpi" or "nccl"; with several backends "cpu:lockstep,cuda:nccl".
std::string get_backend(const ProcessGroup& group = nullptr);
// The device that this rank should compute on. With NCCL: GPU number get_local_rank() of the machine, modulo the number
// of GPUs. Else the CPU.
at::Device local_device();

// Translate ranks. A rank outside the group is an error.
int get_group_rank(const ProcessGroup& group, int global_rank);
int get_global_rank(const ProcessGroup& group, int group_rank);
// The members' ranks in the world, by group rank.
std::vector<int> get_process_group_ranks(const ProcessGroup& group = nullptr);

struct GroupOptions {
  std::chrono::milliseconds timeout{-1};  // positive; -1: the world's timeout
  // The group's name in errors. The members find one another by this name, so it is the same on all members. At most
  // 1024 bytes. "": made from the members, such as "group{0,1}".
  std::string name = {};
  // As for init_process_group: "nccl", "cpu:lockstep,cuda:nccl", ... "": the backends of the world. The same on all
  // members.
  std::string backend = {};
  BackendOptions backend_options = nullptr;  // null: the backend's defaults, whatever the world was given
  // new_group and new_subgroups_by_enumeration: whether ranks are numbered in ascending order. False: in the order of
  // the list, which must be the same on all members.
  bool sort_ranks = true;
};

// Makes a group of `ranks`, without duplicates. Collective over the members; blocks until they are there. Other ranks
// may call it too: they return at once with a handle whose get_rank is -1 and whose operations throw. Without `ranks`:
// all ranks of the world.
ProcessGroup new_group(std::span<const int> ranks, const GroupOptions& options = {}, CallSite site = CallSite::here());
ProcessGroup new_group(std::initializer_list<int> ranks, const GroupOptions& options = {},
                       CallSite site = CallSite::here());
ProcessGroup new_group(const GroupOptions& options = {}, CallSite site = CallSite::here());

// Collective over `parent`: ranks with equal colors form a group, ordered by key and then by rank. A rank with a
// negative color joins none.
ProcessGroup split_group(int color, int key = 0, const ProcessGroup& parent = nullptr, const GroupOptions& options = {},
                         CallSite site = CallSite::here());

// Collective over `parent`: makes groups of `group_size` consecutive group ranks, which must divide the parent's size.
// Returns this rank's group. (PyTorch returns all groups too, so that the program can destroy them; here a group ends
// with its last handle.)
ProcessGroup new_subgroups(int group_size, const GroupOptions& options = {}, const ProcessGroup& parent = nullptr,
                           CallSite site = CallSite::here());

// Makes a group for each list of ranks of the world: {{0, 2}, {1, 3}}. Collective over the ranks that are in a list;
// other ranks may call it too. No rank may be in two lists. Returns this rank's group. A rank that is in no list gets
// the handle of a group without members: get_rank is -1, get_world_size 0, and operations throw.
ProcessGroup new_subgroups_by_enumeration(const std::vector<std::vector<int>>& ranks_per_subgroup,
                                          const GroupOptions& options = {}, CallSite site = CallSite::here());

// The world for a scope: the constructor makes it, the destructor always leaves it. When an exception leaves the scope,
// the other ranks are told and fail at once instead of waiting. The destructor never throws.
class ProcessGroupGuard {
 public:
  explicit ProcessGroupGuard(std::string_view backend = "", const InitOptions& options = {});
  ~ProcessGroupGuard();
  ProcessGroupGuard(const ProcessGroupGuard&) = delete;
  ProcessGroupGuard& operator=(const ProcessGroupGuard&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

 private:
  const Origin origin_;  // the process that made the guard: a fork of it does not leave the world
  int exceptions_at_start_;
  int rank_ = 0;
  int world_size_ = 1;
};

}  // namespace lockstep
