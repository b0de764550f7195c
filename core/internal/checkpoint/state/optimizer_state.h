// Converts LibTorch's optimizers to named tensors and values, and back:
//
//   optimizer.type          "SGD"
//   optimizer.parameters    parameters of each group, "3,2"
//   optimizer.group.0.lr    options of a group
//   optimizer.param.4.exp_avg, .step   state of a parameter, numbered through all groups; absent before its first step
#pragma once

#include <torch/torch.h>

#include <string>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

// A file holds the elements of a tensor in the order of its indices. Where the order in memory is another one than
// that, or than the parameter's (SGD's buffer is a copy of the first gradient), the metadata have the strides as
// NAME.strides. `parameter` may be undefined.
void note_strides(TensorFile& file, const std::string& name, const torch::Tensor& parameter);

// A new tensor without values, with the shape of the tensor `name` and its noted strides; undefined when there are
// none. Throws CheckpointError (kCorrupt).
torch::Tensor with_noted_strides(const TensorFile& file, const std::string& name);

// Throws CheckpointError (kUnsupported, kInvalidArgument).
void add_optimizer(TensorFile& file, const torch::optim::Optimizer& optimizer);

// Throws CheckpointError (kMismatch, kCorrupt, kUnsupported, kIo) before anything is changed.
void restore_optimizer(const TensorFile& file, torch::optim::Optimizer& optimizer);

}  // namespace lockstep::checkpoint
