#pragma once

#include "lockstep/c10d/device_graph.h"

namespace lockstep {

std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device);

// Drops the recordings of all graphs of this process. NCCL destroys a communicator only when no recording has its
// collectives any more, and would wait for that for ever. Thread-safe.
void drop_cuda_recordings();

}  // namespace lockstep
