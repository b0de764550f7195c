// The sizes of a two-dimensional convolution, and which values meet in it.
#pragma once

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <vector>

namespace lockstep::nn_detail {

using Pair = std::array<std::int64_t, 2>;  // of lines, of columns

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

}  // namespace lockstep::nn_detail
