// Operations that mix or move neighbouring pixels: smoothing, blur, padding.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/image/color.h"
#include "data/image/fixed_point.h"

namespace lockstep::data {
namespace {

// PIL's SMOOTH filter: weights of 5 in the middle and 1 around it, divided by 13, in float, with sums in PIL's order.
// The outermost rows and columns stay unchanged.
std::uint8_t smoothed(const std::uint8_t* above, const std::uint8_t* row, const std::uint8_t* below) {
  constexpr float kSide = 1.0F / 13.0F;
  constexpr float kMiddle = 5.0F / 13.0F;
  const auto sum_of = [](const std::uint8_t* at, float middle) {
    return static_cast<float>(at[-4]) * kSide + static_cast<float>(at[0]) * middle + static_cast<float>(at[4]) * kSide;
  };
  float sum = 0.5F;
  sum += sum_of(below, kSide);
  sum += sum_of(row, kMiddle);
  sum += sum_of(above, kSide);
  return static_cast<std::uint8_t>(std::clamp(sum, 0.0F, 255.0F));
}

void smooth_row(const View& picture, int y, std::uint8_t* out) {
  const std::uint8_t* row = picture.row(y);
  std::memcpy(out, row, static_cast<std::size_t>(picture.width) * 4);
  if (y == 0 || y == picture.height - 1) return;
  const std::uint8_t* above = picture.row(y - 1);
  const std::uint8_t* below = picture.row(y + 1);
  for (std::ptrdiff_t i = 4; i < std::ptrdiff_t{4} * (picture.width - 1); ++i) {
    out[i] = smoothed(above + i, row + i, below + i);
  }
}

std::vector<float> gaussian(int size, double sigma) {
  std::vector<float> kernel(static_cast<std::size_t>(size));
  const float half = static_cast<float>(size - 1) * 0.5F;
  float sum = 0.0F;
  for (int i = 0; i < size; ++i) {
    const float x = (static_cast<float>(i) - half) / static_cast<float>(sigma);
    sum += kernel[static_cast<std::size_t>(i)] = std::exp(-0.5F * x * x);
  }
  for (float& value : kernel) value /= sum;
  return kernel;
}

// The position in 0..size-1 to which i is mirrored.
int mirrored(int i, int size, bool repeat_edge) {
  if (size == 1) return 0;
  const int period = repeat_edge ? 2 * size : 2 * size - 2;
  i = (i % period + period) % period;
  if (i < size) return i;
  return repeat_edge ? period - 1 - i : period - i;
}

int source_of(int i, int size, EdgeMode mode) {
  if (i >= 0 && i < size) return i;
  switch (mode) {
    case EdgeMode::kConstant: return -1;
    case EdgeMode::kEdge: return std::clamp(i, 0, size - 1);
    case EdgeMode::kReflect: return mirrored(i, size, false);
    case EdgeMode::kSymmetric: return mirrored(i, size, true);
  }
  return -1;
}

}  // namespace

void adjust_sharpness(const View& picture, float factor, RowSink& sink) {
  if (factor == 1.0F) return copy_rows(picture, sink);
  thread_local std::vector<std::uint8_t> smooth;
  smooth.resize(static_cast<std::size_t>(picture.width) * 4);
  for (int y = 0; y < picture.height; ++y) {
    smooth_row(picture, y, smooth.data());
    image_kernels().blend(smooth.data(), picture.row(y), factor, factor < 0.0F || factor > 1.0F,
                          std::int64_t{4} * picture.width, sink.begin(y));
    sink.end(y);
  }
}

void gaussian_blur(const View& picture, const GaussianKernel& kernel, RowSink& sink) {
  const std::vector<float> across = gaussian(kernel.width, kernel.sigma);
  const std::vector<float> down = gaussian(kernel.height, kernel.sigma);
  const int half_width = kernel.width / 2;
  const int half_height = kernel.height / 2;
  // A ring of horizontally blurred rows would take less memory than whole planes, but blur is rarely the bottleneck.
  thread_local std::vector<float> rows;
  const std::size_t row_values = static_cast<std::size_t>(picture.width) * 4;
  rows.assign(row_values * static_cast<std::size_t>(picture.height), 0.0F);
  for (int y = 0; y < picture.height; ++y) {
    float* out = rows.data() + row_values * static_cast<std::size_t>(y);
    for (int x = 0; x < picture.width; ++x, out += 4) {
      for (int k = 0; k < kernel.width; ++k) {
        const int from = mirrored(x + k - half_width, picture.width, false);
        const std::uint8_t* pixel = picture.row(y) + std::ptrdiff_t{4} * from;
        for (int c = 0; c < 3; ++c) out[c] += across[static_cast<std::size_t>(k)] * static_cast<float>(pixel[c]);
      }
    }
  }
  thread_local std::vector<float> sums;
  for (int y = 0; y < picture.height; ++y) {
    sums.assign(row_values, 0.0F);
    for (int k = 0; k < kernel.height; ++k) {
      const int from = mirrored(y + k - half_height, picture.height, false);
      const float* row = rows.data() + row_values * static_cast<std::size_t>(from);
      for (std::size_t i = 0; i < row_values; ++i) sums[i] += down[static_cast<std::size_t>(k)] * row[i];
    }
    std::uint8_t* out = sink.begin(y);
    for (std::size_t i = 0; i < row_values; ++i) out[i] = static_cast<std::uint8_t>(std::nearbyint(sums[i]));
    sink.end(y);
  }
}

void pad(const View& picture, const PadAmounts& padding, std::array<std::uint8_t, 3> fill, EdgeMode mode,
         RowSink& sink) {
  const int width = picture.width + padding.left + padding.right;
  const int height = picture.height + padding.top + padding.bottom;
  for (int y = 0; y < height; ++y) {
    std::uint8_t* out = sink.begin(y);
    const int from_y = source_of(y - padding.top, picture.height, mode);
    for (int x = 0; x < width; ++x, out += 4) {
      const int from_x = source_of(x - padding.left, picture.width, mode);
      if (from_x < 0 || from_y < 0) {
        fill_pixels(out, 1, fill);
      } else {
        std::memcpy(out, picture.row(from_y) + std::ptrdiff_t{4} * from_x, 4);
      }
    }
    sink.end(y);
  }
}

}  // namespace lockstep::data
