// Converts models to named tensors (model.NAME), and back.
#pragma once

#include <torch/torch.h>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

void add_model(TensorFile& file, const torch::nn::Module& model);

// Throws CheckpointError (kMismatch, kInvalidArgument, kUnsupported, kIo) before anything is changed.
void restore_model(const TensorFile& file, torch::nn::Module& model);

}  // namespace lockstep::checkpoint
