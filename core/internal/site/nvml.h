// The GPUs of this machine as NVIDIA's management library (NVML) sees them. It is loaded when it is asked for, because
// most machines that run the launcher have none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::site {

struct GpuUser {
  int pid = 0;
  std::uint64_t bytes = 0;  // 0: the driver does not say
};

struct Gpu {
  int index = 0;     // in the order of the PCI bus, as nvidia-smi counts
  std::string uuid;  // "GPU-..."
  std::string name;
  std::string pci;  // "0000:3b:00.0"
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  int numa_node = -1;  // -1: the machine has one, or does not say
  std::vector<GpuUser> users;
  Status health;  // why the GPU cannot be used; the fields above are then not complete
};

struct GpuInventory {
  std::string driver;  // "580.65.06"
  std::vector<Gpu> gpus;
};

// Blocks for the driver, a few milliseconds up to a second. kUnavailable, with the reason: no driver here, or it does
// not work. A single GPU that does not work is in the list with its reason.
Result<GpuInventory> list_gpus();

// "GPU 2 (NVIDIA H100, 71.2 of 79.6 GiB free)"
std::string describe(const Gpu& gpu);

}  // namespace lockstep::site
