// Which backend serves which kind of device, and how one is made.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "c10d/backend/backend_plugin.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/c10d/program_communicator.h"

namespace lockstep {

enum class BackendName { kLockstep, kMpi, kNccl };

// A backend string of init_process_group, parsed.
struct BackendChoice {
  struct Entry {
    c10::DeviceType device;
    BackendName backend;
  };
  std::vector<Entry> entries;  // at most one per device

  bool serves(c10::DeviceType device) const;
  bool has(BackendName backend) const;
};

// "name" (every device that the backend serves), or "device:name,device:name"; "": what this program can use. Throws
// ArgumentError for unknown names and devices, and for backends that this build lacks; each message begins with
// `caller` and lists the available ones.
BackendChoice parse_backends(std::string_view text, const char* caller);

// "cpu:lockstep,cuda:nccl": every device with its backend, in a fixed order.
std::string text_of(const BackendChoice& choice);

// "cpu", "cuda".
std::string device_name(c10::DeviceType device);

// Throws ArgumentError unless `options` is null or belongs to one of the backends, which has options of its own.
void check_backend_options(const BackendChoice& choice, const BackendOptions& options, const char* caller);

// Of a world whose ranks are those of a communicator. Throws ArgumentError where backend mpi is chosen, and cannot use
// this communicator: it is not MPI's (none), of another MPI than this build's, or threads may not call MPI.
void check_mpi_of_program(const BackendChoice& choice, const std::optional<ProgramCommunicator::Mpi>& mpi,
                          const char* caller);

struct DeviceBackend {
  c10::DeviceType device;
  c10d::ProcessGroup::BackendType type;
  c10::intrusive_ptr<c10d::Backend> backend;
};

// One backend per name in `choice`, listed per device. Collective over the members.
std::vector<DeviceBackend> make_backends(const BackendChoice& choice, const BackendRequest& request);

// The device that this rank computes on: a GPU, by its local rank, if NCCL is among the backends and there are GPUs;
// else the CPU.
c10::Device choose_device(const BackendChoice& choice, int local_rank);

}  // namespace lockstep
