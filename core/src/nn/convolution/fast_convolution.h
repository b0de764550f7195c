// Convolutions of few pixels with a large kernel, on the CPU: what the intercepted operator does with them.
#pragma once

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <vector>

namespace lockstep::nn_detail {

using Pair = std::array<std::int64_t, 2>;  // of lines, of columns

// The sizes of a two-dimensional convolution.
struct ConvolutionShape {
  std::int64_t samples, channels, height, width;  // of the input
  std::int64_t results;                           // channels of the result
  std::int64_t kernel_height, kernel_width;
  Pair stride;
  Pair padding;  // zeros on each side

  ConvolutionShape(const torch::Tensor& input, const torch::Tensor& weight, Pair stride, Pair padding);

  std::int64_t result_height() const { return (height + 2 * padding[0] - kernel_height) / stride[0] + 1; }
  std::int64_t result_width() const { return (width + 2 * padding[1] - kernel_width) / stride[1] + 1; }
  std::int64_t pixels() const { return height * width; }
  std::int64_t taps() const { return kernel_height * kernel_width; }
  std::int64_t result_pixels() const { return result_height() * result_width(); }
  // Pixels of the results of all samples.
  std::int64_t rows() const { return samples * result_pixels(); }
};

// A pixel of one sample's result, and the pixel of its picture that a tap of the kernel lays on it.
struct Meeting {
  std::int64_t result_pixel, pixel;
};
// For each tap, line by line; without what lies beyond the picture.
std::vector<std::vector<Meeting>> meetings_of(const ConvolutionShape& shape);

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

// A convolution with a contiguous kernel as one product of matrices. A row for each pixel of the result has the values
// that the kernel meets there, in the order in which the kernel lies in memory; so the kernel is not moved ("im2col").
// All tensors are float and on the CPU; `rows` are {shape.rows(), results}, contiguous.
namespace lockstep::nn_detail::by_columns {

// The result as rows, without a bias.
torch::Tensor convolve(const torch::Tensor& input, const torch::Tensor& weight, const ConvolutionShape& shape);
// `rows` is the gradient of the result, as rows. The gradients of input and kernel are contiguous.
torch::Tensor input_gradient(const torch::Tensor& rows, const torch::Tensor& weight, const ConvolutionShape& shape);
torch::Tensor weight_gradient(const torch::Tensor& rows, const torch::Tensor& input, const ConvolutionShape& shape);

}  // namespace lockstep::nn_detail::by_columns

// A convolution as one product of matrices for each tap of the kernel. The channels of the kernel are last in memory; a
// kernel of 1x1 always lies so. A tap's part of such a kernel is a matrix as it lies there. Only the
// pixels that a tap lays on the picture are multiplied: for pictures of 2x2 and a kernel of 3x3 with padding that is
// less than half of all. All tensors are float and on the CPU; `rows` are {shape.rows(), results}, contiguous.
namespace lockstep::nn_detail::by_taps {

// The result as rows, without a bias.
torch::Tensor convolve(const torch::Tensor& input, const torch::Tensor& weight, const ConvolutionShape& shape);
// `rows` is the gradient of the result, as rows. The gradient of the input has a row for each pixel of the input:
// {samples * pixels(), channels}.
torch::Tensor input_gradient(const torch::Tensor& rows, const torch::Tensor& weight, const ConvolutionShape& shape);
// The gradient of the kernel, in the kernel's layout.
torch::Tensor weight_gradient(const torch::Tensor& rows, const torch::Tensor& input, const ConvolutionShape& shape,
                              torch::MemoryFormat layout);

}  // namespace lockstep::nn_detail::by_taps
