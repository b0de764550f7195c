#include <algorithm>
#include <cmath>
#include <vector>

#include "image/color.h"

namespace lockstep::data {
namespace {

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

// Blurs along x. `read` writes pixel x of row y, `per_pixel` numbers, to its second argument.
template <class Read>
void blur_rows(ImageSize size, int per_pixel, const std::vector<float>& weights, const Read& read,
               std::vector<float>& out) {
  thread_local std::vector<float> padded;
  thread_local std::vector<const float*> taps;
  const int count = static_cast<int>(weights.size());
  const int values = size.width * per_pixel;
  padded.resize(static_cast<std::size_t>(size.width + count - 1) * static_cast<std::size_t>(per_pixel));
  taps.resize(weights.size());
  for (int k = 0; k < count; ++k) taps[static_cast<std::size_t>(k)] = padded.data() + std::ptrdiff_t{k} * per_pixel;
  out.resize(static_cast<std::size_t>(values) * static_cast<std::size_t>(size.height));
  for (int y = 0; y < size.height; ++y) {
    for (int i = 0; i < size.width + count - 1; ++i) {
      read(mirrored(i - count / 2, size.width, false), y, padded.data() + std::ptrdiff_t{i} * per_pixel);
    }
    image_kernels().weighted_sum(taps.data(), weights.data(), count, values, out.data() + std::ptrdiff_t{y} * values);
  }
}

// Blurs `rows` along y. `write` gets the number of a row and its values, and may read kSlack numbers more.
template <class Write>
void blur_columns(const std::vector<float>& rows, int values, int height, const std::vector<float>& weights,
                  const Write& write) {
  thread_local std::vector<float> sums;
  thread_local std::vector<const float*> taps;
  const int count = static_cast<int>(weights.size());
  sums.resize(static_cast<std::size_t>(values) + Image::kSlack);
  taps.resize(weights.size());
  for (int y = 0; y < height; ++y) {
    for (int k = 0; k < count; ++k) {
      const int from = mirrored(y + k - count / 2, height, false);
      taps[static_cast<std::size_t>(k)] = rows.data() + std::ptrdiff_t{from} * values;
    }
    image_kernels().weighted_sum(taps.data(), weights.data(), count, values, sums.data());
    write(y, sums.data());
  }
}

std::vector<float>& blurred_rows() {
  thread_local std::vector<float> rows;
  return rows;
}

}  // namespace

int mirrored(int i, int size, bool repeat_edge) {
  if (i >= 0 && i < size) return i;
  if (size == 1) return 0;
  const int period = repeat_edge ? 2 * size : 2 * size - 2;
  i = (i % period + period) % period;
  if (i < size) return i;
  return repeat_edge ? period - 1 - i : period - i;
}

void gaussian_blur(const View& picture, const GaussianKernel& kernel, RowSink& sink) {
  constexpr int kPerPixel = Image::kBytesPerPixel;
  const ImageSize size{picture.width, picture.height};
  const auto read = [&](int x, int y, float* out) {
    const std::uint8_t* pixel = picture.row(y) + std::ptrdiff_t{kPerPixel} * x;
    for (int c = 0; c < kPerPixel; ++c) out[c] = static_cast<float>(pixel[c]);
  };
  std::vector<float>& rows = blurred_rows();
  blur_rows(size, kPerPixel, gaussian(kernel.width, kernel.sigma), read, rows);
  const int values = size.width * kPerPixel;
  blur_columns(rows, values, size.height, gaussian(kernel.height, kernel.sigma), [&](int y, const float* sums) {
    image_kernels().to_bytes(sums, values, sink.begin(y));
    sink.end(y);
  });
}

void gaussian_blur(float* plane, ImageSize size, const GaussianKernel& kernel) {
  const std::ptrdiff_t width = size.width;
  const auto read = [&](int x, int y, float* out) { *out = plane[y * width + x]; };
  std::vector<float>& rows = blurred_rows();
  blur_rows(size, 1, gaussian(kernel.width, kernel.sigma), read, rows);
  blur_columns(rows, size.width, size.height, gaussian(kernel.height, kernel.sigma),
               [&](int y, const float* sums) { std::copy_n(sums, width, plane + y * width); });
}

}  // namespace lockstep::data
