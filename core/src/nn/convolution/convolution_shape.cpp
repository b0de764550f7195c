#include "convolution_shape.h"

namespace lockstep::nn_detail {

ConvolutionShape::ConvolutionShape(const torch::Tensor& input, const torch::Tensor& weight, Pair the_stride,
                                   Pair the_padding)
    : samples(input.size(0)),
      channels(input.size(1)),
      height(input.size(2)),
      width(input.size(3)),
      results(weight.size(0)),
      kernel_height(weight.size(2)),
      kernel_width(weight.size(3)),
      stride(the_stride),
      padding(the_padding) {}

std::vector<std::vector<Meeting>> meetings_of(const ConvolutionShape& shape) {
  std::vector<std::vector<Meeting>> all(shape.taps());
  for (std::int64_t tap = 0; tap < shape.taps(); ++tap) {
    for (std::int64_t result = 0; result < shape.result_pixels(); ++result) {
      const std::int64_t line = result / shape.result_width(), column = result % shape.result_width();
      const std::int64_t y = line * shape.stride[0] - shape.padding[0] + tap / shape.kernel_width;
      const std::int64_t x = column * shape.stride[1] - shape.padding[1] + tap % shape.kernel_width;
      if (y >= 0 && y < shape.height && x >= 0 && x < shape.width) all[tap].push_back({result, y * shape.width + x});
    }
  }
  return all;
}

}  // namespace lockstep::nn_detail
