// Which backend serves which kind of device, and how one is made.
#pragma once

#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "c10d/backend_plugin.h"

namespace lockstep {

enum class BackendName { kLockstep, kMpi, kNccl };

// A backend string of init_process_group, understood.
struct BackendChoice {
  struct Entry {
    c10::DeviceType device;
    BackendName backend;
  };
  std::vector<Entry> entries;  // at most one per device

  bool serves(c10::DeviceType device) const;
};

// "name" (every device that the backend serves), or "device:name,device:name"; "": what this program can use. Throws
// ArgumentError for unknown names and devices, and for backends that this build lacks; each message lists what there
// is.
BackendChoice parse_backends(std::string_view text);

struct DeviceBackend {
  c10::DeviceType device;
  c10d::ProcessGroup::BackendType type;
  c10::intrusive_ptr<c10d::Backend> backend;
};

// One backend per name in `choice`, listed per device. Collective over the members.
std::vector<DeviceBackend> make_backends(const BackendChoice& choice, const BackendRequest& request);

// Where this rank computes: the GPU of its number among those of the machine when a backend serves GPUs alone or GPUs
// are there and NCCL serves them, else the CPU.
c10::Device choose_device(const BackendChoice& choice, int local_rank);

}  // namespace lockstep
