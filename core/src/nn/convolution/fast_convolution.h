// Convolutions of few pixels with a large kernel, on the CPU: what the intercepted operator does with them.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "convolution_shape.h"

namespace lockstep::nn_detail {

// The arguments of aten::conv2d; `bias` may be undefined.
struct ConvolutionCall {
  torch::Tensor input, weight, bias;
  Pair stride, padding, dilation;
  std::int64_t groups;
};

// Whether fast_convolution() serves this call. All that is unusual, or wrong, is left to LibTorch.
bool suits_fast_convolution(const ConvolutionCall& call);

// As at::conv2d: the same values and gradients of every order, but for the order in which products are added up.
torch::Tensor fast_convolution(const ConvolutionCall& call);

}  // namespace lockstep::nn_detail
