// A convolution with a kernel whose channels are last in memory, which those of a kernel of 1x1 always are, as one
// product of matrices for each tap of the kernel. A tap's part of such a kernel is a matrix as it lies there. Only the
// pixels that a tap lays on the picture are multiplied: for pictures of 2x2 and a kernel of 3x3 with padding that is
// less than half of all. All tensors are float and on the CPU; `rows` are {shape.rows(), results}, contiguous.
#pragma once

#include "convolution_shape.h"

namespace lockstep::nn_detail::by_taps {

// The result as rows, without a bias.
torch::Tensor convolve(const torch::Tensor& input, const torch::Tensor& weight, const ConvolutionShape& shape);
// The gradient of the input that follows from that of the rows: a row for each pixel, {samples * pixels(), channels}.
torch::Tensor input_gradient(const torch::Tensor& rows, const torch::Tensor& weight, const ConvolutionShape& shape);
// That of the kernel, in its layout.
torch::Tensor weight_gradient(const torch::Tensor& rows, const torch::Tensor& input, const ConvolutionShape& shape,
                              torch::MemoryFormat layout);

}  // namespace lockstep::nn_detail::by_taps
