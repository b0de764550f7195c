// The interface between init_process_group and the backends in libraries of their own, liblockstep_mpi.so and
// liblockstep_nccl.so. Programs that use neither load neither, nor what these link. A library exports one C function,
// which returns a BackendPlugin.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "base/call_place.h"
#include "lockstep/c10d/device_graph.h"
#include "lockstep/store/member.h"
#include "lockstep/store/store.h"

namespace lockstep {

// The program's functions of base/call_place.h. A backend's library has copies of these functions, and the copies know
// no place of the program.
struct CallPlaces {
  CallPlace (*current)() = [] { return CallPlace(); };
  std::string (*describe)(CallPlace place) = [](CallPlace) { return std::string(); };
};

// What a backend gets to join one group.
struct BackendRequest {
  std::shared_ptr<comm::Store> store;  // its keys are for this backend and group alone
  std::string name;                    // in errors
  int rank = 0;                        // in the group
  std::vector<int> global_ranks;       // by group rank
  std::vector<comm::Member> members;   // the records of the ranks, by group rank; empty: not known
  std::chrono::milliseconds timeout;   // for joining, and for operations without their own
  int local_rank = 0;                  // of this process on its machine
  c10::intrusive_ptr<c10d::Backend::Options> options = nullptr;  // of this backend, from the caller; may be null
  // For a world of the ranks of an MPI communicator of the program's, its handle as of MPI_Comm_c2f. Later groups of
  // that world are made without it.
  std::optional<int> mpi_communicator = {};
  CallPlaces places = {};  // from where the program calls, for errors

  int group_size() const { return static_cast<int>(global_ranks.size()); }
};

struct BackendPlugin {
  const char* build;  // must be that of the caller: C++ types cross this interface
  // Collective over the members; throws what init_process_group and new_group throw.
  c10::intrusive_ptr<c10d::Backend> (*create)(const BackendRequest& request);
  // For the backend's devices; null: they have none.
  std::unique_ptr<DeviceGraph> (*make_graph)(c10::Device device) = nullptr;
};

// LOCKSTEP_BUILD is the versions of Lockstep, of this interface and of LibTorch, from CMake.
inline constexpr const char* kBackendBuild = LOCKSTEP_BUILD;
// extern "C" const lockstep::BackendPlugin* lockstep_backend();
inline constexpr const char* kBackendEntry = "lockstep_backend";

}  // namespace lockstep
