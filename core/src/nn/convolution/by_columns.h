// A convolution with a contiguous kernel as one product of matrices. A row for each pixel of the result has the values
// that the kernel meets there, in the order in which the kernel lies in memory; so the kernel is not moved ("im2col").
// All tensors are float and on the CPU; `rows` are {shape.rows(), results}, contiguous.
#pragma once

#include "convolution_shape.h"

namespace lockstep::nn_detail::by_columns {

// The result as rows, without a bias.
torch::Tensor convolve(const torch::Tensor& input, const torch::Tensor& weight, const ConvolutionShape& shape);
// The gradients that follow from that of the rows, contiguous.
torch::Tensor input_gradient(const torch::Tensor& rows, const torch::Tensor& weight, const ConvolutionShape& shape);
torch::Tensor weight_gradient(const torch::Tensor& rows, const torch::Tensor& input, const ConvolutionShape& shape);

}  // namespace lockstep::nn_detail::by_columns
