#include "image/affine.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "image/fixed_point.h"

namespace lockstep::data {
namespace {

bool fits_fixed(const AffineMatrix& m, double x, double y) {
  return std::abs(x * m[0] + y * m[1] + m[2]) < 32768.0 && std::abs(x * m[3] + y * m[4] + m[5]) < 32768.0;
}

bool fits_fixed(const AffineMatrix& m, ImageSize size) {
  return fits_fixed(m, 0, 0) && fits_fixed(m, size.width, size.height) && fits_fixed(m, 0, size.height) &&
         fits_fixed(m, size.width, 0);
}

void nearest_fixed(const View& picture, ImageSize size, const AffineMatrix& m, Color fill, RowSink& sink) {
  const std::int64_t dx = fixed(m[0]);
  const std::int64_t dy = fixed(m[3]);
  std::int64_t x = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5);
  std::int64_t y = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
  const ImageKernels& kernels = image_kernels();
  for (int row = 0; row < size.height; ++row, x += fixed(m[1]), y += fixed(m[4])) {
    Interval inside{0, size.width};
    narrow(inside, x, dx, 0, std::int64_t{picture.width} << 16);
    narrow(inside, y, dy, 0, std::int64_t{picture.height} << 16);
    std::uint8_t* out = sink.begin(row);
    fill_pixels(out, static_cast<int>(inside.begin), fill);
    kernels.gather(
        {picture.pixels, static_cast<std::int64_t>(picture.stride), static_cast<std::int32_t>(x + inside.begin * dx),
         static_cast<std::int32_t>(y + inside.begin * dy), static_cast<std::int32_t>(dx), static_cast<std::int32_t>(dy),
         static_cast<int>(inside.end - inside.begin)},
        out + 4 * inside.begin);
    fill_pixels(out + 4 * inside.end, size.width - static_cast<int>(inside.end), fill);
    sink.end(row);
  }
}

bool inside(const View& picture, double x, double y) {
  return x >= 0.0 && x < picture.width && y >= 0.0 && y < picture.height;
}

bool read_nearest(const View& picture, double x, double y, std::uint8_t* out) {
  if (!inside(picture, x, y)) return false;
  std::memcpy(out, picture.row(static_cast<int>(y)) + std::ptrdiff_t{4} * static_cast<int>(x), 4);
  return true;
}

// PIL adds up steps if a matrix only scales or does not fit fixed point; this rounds differently from a product.
void nearest_summed(const View& picture, ImageSize size, const AffineMatrix& m, Color fill, RowSink& sink) {
  double row_x = m[2] + m[1] * 0.5 + m[0] * 0.5;
  double row_y = m[5] + m[4] * 0.5 + m[3] * 0.5;
  for (int row = 0; row < size.height; ++row, row_x += m[1], row_y += m[4]) {
    std::uint8_t* out = sink.begin(row);
    double x = row_x;
    double y = row_y;
    for (int i = 0; i < size.width; ++i, x += m[0], y += m[3], out += Image::kBytesPerPixel) {
      if (!read_nearest(picture, x, y, out)) fill_pixels(out, 1, fill);
    }
    sink.end(row);
  }
}

double cubic(const std::array<double, 4>& v, double d) {
  const double p2 = -v[0] + v[2];
  const double p3 = 2 * (v[0] - v[1]) + v[2] - v[3];
  const double p4 = -v[0] + v[1] - v[2] + v[3];
  return v[1] + d * (p2 + d * (p3 + d * p4));
}

// Interpolates 4 x 4 pixels. As in PIL, columns outside repeat the edge, rows below it the last sum.
bool read_bicubic(const View& picture, double x, double y, std::uint8_t* out) {
  constexpr int kPoints = 4;
  if (!inside(picture, x, y)) return false;
  x -= 0.5;
  y -= 0.5;
  const double floor_x = std::floor(x);
  const double floor_y = std::floor(y);
  const int left = static_cast<int>(floor_x) - 1;
  const int top = static_cast<int>(floor_y) - 1;
  for (int c = 0; c < 3; ++c) {
    std::array<double, kPoints> sums{};
    for (int j = 0; j < kPoints; ++j) {
      if (j > 0 && (top + j < 0 || top + j >= picture.height)) {
        sums[static_cast<std::size_t>(j)] = sums[static_cast<std::size_t>(j - 1)];
        continue;
      }
      const std::uint8_t* row = picture.row(std::clamp(top + j, 0, picture.height - 1)) + c;
      std::array<double, kPoints> values{};
      for (int i = 0; i < kPoints; ++i) {
        values[static_cast<std::size_t>(i)] = row[std::ptrdiff_t{4} * std::clamp(left + i, 0, picture.width - 1)];
      }
      sums[static_cast<std::size_t>(j)] = cubic(values, x - floor_x);
    }
    out[c] = static_cast<std::uint8_t>(std::clamp(cubic(sums, y - floor_y), 0.0, 255.0));
  }
  out[3] = 255;
  return true;
}

// Positions of whole rows, from the kernel.
void interpolated(const View& picture, ImageSize size, const AffineMatrix& m, Interpolation filter, Color fill,
                  RowSink& sink) {
  thread_local std::vector<double> positions;
  const auto width = static_cast<std::size_t>(size.width);
  positions.resize(2 * width);
  double* xs = positions.data();
  double* ys = xs + width;
  const ImageKernels& kernels = image_kernels();
  for (int y = 0; y < size.height; ++y) {
    std::uint8_t* out = sink.begin(y);
    kernels.project(m.data(), y, size.width, xs, ys);
    if (filter == Interpolation::kBilinear) {
      kernels.sample_bilinear({picture.pixels,
                               static_cast<std::int64_t>(picture.stride),
                               picture.width,
                               picture.height,
                               xs,
                               ys,
                               size.width,
                               {fill[0], fill[1], fill[2], 255}},
                              out);
    } else {
      for (std::size_t x = 0; x < width; ++x) {
        if (!read_bicubic(picture, xs[x], ys[x], out + 4 * x)) fill_pixels(out + 4 * x, 1, fill);
      }
    }
    sink.end(y);
  }
}

}  // namespace

void transform_affine(const View& picture, ImageSize size, const AffineMatrix& m, Interpolation filter, Color fill,
                      RowSink& sink) {
  if (filter != Interpolation::kNearest) return interpolated(picture, size, m, filter, fill, sink);
  const bool scales = m[1] == 0 && m[3] == 0;
  if (!scales && fits_fixed(m, size)) return nearest_fixed(picture, size, m, fill, sink);
  nearest_summed(picture, size, m, fill, sink);
}

}  // namespace lockstep::data
