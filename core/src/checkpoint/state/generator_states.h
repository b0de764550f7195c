// Random generators in checkpoints: the states of all ranks in one tensor, uint8 [ranks, bytes of a state].
#pragma once

#include <span>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

void add_generators(TensorFile& file, std::span<const at::Tensor> states, torch::DeviceType type);
void restore_generator(const TensorFile& file, torch::Device device);

}  // namespace lockstep::checkpoint
