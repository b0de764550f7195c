// Mean and variance of the channels of a batch, for batch normalisation on the CPU.
#pragma once

#include <torch/types.h>

#include "moments_kernels.h"

namespace lockstep {
enum class InstructionSet : std::uint8_t;  // base/instruction_set.h
}

namespace lockstep::nn_detail {

// Whether channel_moments() takes this tensor: floats in the memory of the CPU, (N, C, +), the values of a channel next
// to one another and not few of them in each sample. For others LibTorch's own function is as fast.
bool has_channel_moments(const torch::Tensor& input);

struct ChannelMoments {
  torch::Tensor mean;  // [C], float, as var
  torch::Tensor var;   // divided by the number of values: biased
};

// The sums are doubles, as in LibTorch (at::batch_norm_update_stats). But there each addition waits for the one
// before, which takes about six times as long.
ChannelMoments channel_moments(const torch::Tensor& input);

// The kernel for an instruction set, which this machine must support.
MomentsKernel moments_kernel(InstructionSet set);

}  // namespace lockstep::nn_detail
