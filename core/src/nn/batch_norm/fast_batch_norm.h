// Batch normalisation of one process on the CPU: what the intercepted operator does in training passes.
#pragma once

#include <torch/types.h>

#include "nn/batch_norm/synchronised_batch_norm.h"

namespace lockstep::nn_detail {

// Whether use_fast_batch_norm() has been called.
bool is_fast_everywhere();

// Whether fast_batch_norm() serves this call of a training pass. All that is unusual, or wrong, is left to LibTorch.
bool suits_fast_batch_norm(const BatchNormCall& call);

// As at::batch_norm in training: the same values, running statistics and gradients of every order, but for the order
// in which doubles are added up before they are rounded to float.
torch::Tensor fast_batch_norm(const BatchNormCall& call);

}  // namespace lockstep::nn_detail
