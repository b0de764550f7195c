// The sizes of a two-dimensional convolution, and which values meet in it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace lockstep::nn_detail {

struct ConvolutionShape {
  std::int64_t samples, channels, height, width;  // of the input
  std::int64_t results;                           // channels of the result
  std::int64_t kernel_height, kernel_width;
  std::int64_t stride_height, stride_width;
  std::int64_t padding_height, padding_width;  // zeros on each side

  ConvolutionShape(const torch::Tensor& input, const torch::Tensor& weight, torch::IntArrayRef stride,
                   torch::IntArrayRef padding);

  std::int64_t result_height() const { return (height + 2 * padding_height - kernel_height) / stride_height + 1; }
  std::int64_t result_width() const { return (width + 2 * padding_width - kernel_width) / stride_width + 1; }
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
