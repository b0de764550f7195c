#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "fast_convolution.h"

namespace lockstep::nn_detail::by_columns {
namespace {

using torch::Tensor;

// Calls `move(in_matrix, in_pictures)` with the places of all values that the kernel meets. A sample's in one thread.
template <typename Move>
void for_each_value(const ConvolutionShape& shape, const Move& move) {
  const std::vector<std::vector<Meeting>> taps = meetings_of(shape);
  at::parallel_for(0, shape.samples * shape.channels, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const std::int64_t sample = plane / shape.channels, channel = plane % shape.channels;
      for (std::int64_t tap = 0; tap < shape.taps(); ++tap) {
        const std::int64_t column = channel * shape.taps() + tap;
        for (const Meeting& meeting : taps[tap]) {
          const std::int64_t row = sample * shape.result_pixels() + meeting.result_pixel;
          move(row * shape.channels * shape.taps() + column, plane * shape.pixels() + meeting.pixel);
        }
      }
    }
  });
}

Tensor gather(const Tensor& input, const ConvolutionShape& shape) {
  const Tensor pictures = input.contiguous();
  // Zeros where the kernel is beyond the picture.
  Tensor matrix = torch::zeros({shape.rows(), shape.channels * shape.taps()}, pictures.options());
  const auto* const from = pictures.const_data_ptr<float>();
  auto* const to = matrix.mutable_data_ptr<float>();
  for_each_value(shape, [&](std::int64_t in_matrix, std::int64_t in_pictures) { to[in_matrix] = from[in_pictures]; });
  return matrix;
}

// What several rows have for the same value is added up.
Tensor scatter(const Tensor& matrix, const ConvolutionShape& shape) {
  Tensor pictures = torch::zeros({shape.samples, shape.channels, shape.height, shape.width}, matrix.options());
  const auto* const from = matrix.const_data_ptr<float>();
  auto* const to = pictures.mutable_data_ptr<float>();
  for_each_value(shape, [&](std::int64_t in_matrix, std::int64_t in_pictures) { to[in_pictures] += from[in_matrix]; });
  return pictures;
}

Tensor as_matrix(const Tensor& weight) {
  return weight.view({weight.size(0), -1});
}

}  // namespace

Tensor convolve(const Tensor& input, const Tensor& weight, const ConvolutionShape& shape) {
  return at::mm(gather(input, shape), as_matrix(weight).t());
}

Tensor input_gradient(const Tensor& rows, const Tensor& weight, const ConvolutionShape& shape) {
  return scatter(at::mm(rows, as_matrix(weight)), shape);
}

Tensor weight_gradient(const Tensor& rows, const Tensor& input, const ConvolutionShape& shape) {
  Tensor gradient =
      torch::empty({shape.results, shape.channels, shape.kernel_height, shape.kernel_width}, rows.options());
  Tensor matrix = as_matrix(gradient);
  at::mm_out(matrix, rows.t(), gather(input, shape));
  return gradient;
}

}  // namespace lockstep::nn_detail::by_columns
