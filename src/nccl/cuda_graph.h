#pragma once

#include "lockstep/c10d/device_graph.h"

namespace lockstep {

std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device);

}  // namespace lockstep
