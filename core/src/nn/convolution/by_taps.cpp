#include <torch/torch.h>

#include "fast_convolution.h"

namespace lockstep::nn_detail::by_taps {
namespace {

using torch::Tensor;

// Calls `multiply(line, column, rows, pixels)` for each tap of the kernel that meets something: which rows of the
// result, and which pixels of all pictures, as tensors of indices.
template <typename Multiply>
void for_each_tap(const ConvolutionShape& shape, const Multiply& multiply) {
  const std::vector<std::vector<Meeting>> taps = meetings_of(shape);
  for (std::int64_t tap = 0; tap < shape.taps(); ++tap) {
    const std::int64_t count = shape.samples * static_cast<std::int64_t>(taps[tap].size());
    if (count == 0) continue;
    Tensor rows = torch::empty({count}, torch::kLong), pixels = torch::empty({count}, torch::kLong);
    auto* row = rows.mutable_data_ptr<std::int64_t>();
    auto* pixel = pixels.mutable_data_ptr<std::int64_t>();
    for (std::int64_t sample = 0; sample < shape.samples; ++sample) {
      for (const Meeting& meeting : taps[tap]) {
        *row++ = sample * shape.result_pixels() + meeting.result_pixel;
        *pixel++ = sample * shape.pixels() + meeting.pixel;
      }
    }
    multiply(tap / shape.kernel_width, tap % shape.kernel_width, rows, pixels);
  }
}

// {results, channels}: a view.
Tensor part_of(const Tensor& weight, std::int64_t line, std::int64_t column) {
  return weight.select(3, column).select(2, line);
}

// A row for each pixel; a view of pictures whose channels are last.
Tensor pixels_of(const Tensor& input, const ConvolutionShape& shape) {
  return input.permute({0, 2, 3, 1}).reshape({shape.samples * shape.pixels(), shape.channels});
}

}  // namespace

Tensor convolve(const Tensor& input, const Tensor& weight, const ConvolutionShape& shape) {
  Tensor result = torch::zeros({shape.rows(), shape.results}, input.options());
  const Tensor pictures = pixels_of(input, shape);
  for_each_tap(shape, [&](std::int64_t line, std::int64_t column, const Tensor& rows, const Tensor& pixels) {
    result.index_add_(0, rows, at::mm(pictures.index_select(0, pixels), part_of(weight, line, column).t()));
  });
  return result;
}

Tensor input_gradient(const Tensor& rows, const Tensor& weight, const ConvolutionShape& shape) {
  Tensor gradient = torch::zeros({shape.samples * shape.pixels(), shape.channels}, rows.options());
  for_each_tap(shape, [&](std::int64_t line, std::int64_t column, const Tensor& places, const Tensor& pixels) {
    gradient.index_add_(0, pixels, at::mm(rows.index_select(0, places), part_of(weight, line, column)));
  });
  return gradient;
}

Tensor weight_gradient(const Tensor& rows, const Tensor& input, const ConvolutionShape& shape,
                       torch::MemoryFormat layout) {
  const Tensor gradient =
      at::empty({shape.results, shape.channels, shape.kernel_height, shape.kernel_width}, rows.options(), layout)
          .zero_();
  const Tensor pictures = pixels_of(input, shape);
  for_each_tap(shape, [&](std::int64_t line, std::int64_t column, const Tensor& places, const Tensor& pixels) {
    Tensor part = part_of(gradient, line, column);
    at::mm_out(part, rows.index_select(0, places).t(), pictures.index_select(0, pixels));
  });
  return gradient;
}

}  // namespace lockstep::nn_detail::by_taps
