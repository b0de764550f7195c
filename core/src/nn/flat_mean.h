// The mean of many tensors over ranks, in one message for each dtype and device.
#pragma once

#include <torch/types.h>

#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep::nn_detail {

// Collective; blocks. All ranks pass tensors of the same shapes in the same order.
void flat_mean(const std::vector<torch::Tensor>& tensors, const ProcessGroup& group);

}  // namespace lockstep::nn_detail
