// Converts LibTorch's optimizers to named tensors and values, and back:
//
//   optimizer.type          "SGD"
//   optimizer.parameters    parameters of each group, "3,2"
//   optimizer.group.0.lr    options of a group
//   optimizer.param.4.exp_avg, .step   state of a parameter, numbered through all groups; absent before its first step
#pragma once

#include <torch/torch.h>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

// Throws CheckpointError (kUnsupported, kInvalidArgument).
void add_optimizer(TensorFile& file, const torch::optim::Optimizer& optimizer);

// Throws CheckpointError (kMismatch, kCorrupt, kUnsupported, kIo) before anything is changed.
void restore_optimizer(const TensorFile& file, torch::optim::Optimizer& optimizer);

}  // namespace lockstep::checkpoint
