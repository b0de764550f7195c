#include "data/image/affine.h"

#include <cmath>
#include <cstring>

#include "data/image/fixed_point.h"

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

// Makes the output one pixel at a time: `position` gives the place in the input, `read` the pixel there.
template <class Position, class Read>
void each_pixel(ImageSize size, Color fill, RowSink& sink, Position position, Read read) {
  for (int y = 0; y < size.height; ++y) {
    std::uint8_t* out = sink.begin(y);
    position.start_row(y);
    for (int x = 0; x < size.width; ++x, out += Image::kBytesPerPixel) {
      const auto [at_x, at_y] = position.next(x);
      if (!read(at_x, at_y, out)) fill_pixels(out, 1, fill);
    }
    sink.end(y);
  }
}

// PIL adds up steps if a matrix only scales or does not fit fixed point; this rounds differently from a product.
struct Summed {
  const AffineMatrix& m;
  double row_x, row_y, x = 0, y = 0;
  explicit Summed(const AffineMatrix& matrix)
      : m(matrix), row_x(m[2] + m[1] * 0.5 + m[0] * 0.5), row_y(m[5] + m[4] * 0.5 + m[3] * 0.5) {}
  void start_row(int row) {
    if (row > 0) {
      row_x += m[1];
      row_y += m[4];
    }
    x = row_x;
    y = row_y;
  }
  std::pair<double, double> next(int /*x*/) {
    const std::pair<double, double> at(x, y);
    x += m[0];
    y += m[3];
    return at;
  }
};

struct Multiplied {
  const AffineMatrix& m;
  double y = 0;
  void start_row(int row) { y = row + 0.5; }
  std::pair<double, double> next(int x) const {
    const double at = x + 0.5;
    return {m[0] * at + m[1] * y + m[2], m[3] * at + m[4] * y + m[5]};
  }
};

bool inside(const View& picture, double x, double y) {
  return x >= 0.0 && x < picture.width && y >= 0.0 && y < picture.height;
}

bool read_nearest(const View& picture, double x, double y, std::uint8_t* out) {
  if (!inside(picture, x, y)) return false;
  std::memcpy(out, picture.row(static_cast<int>(y)) + std::ptrdiff_t{4} * static_cast<int>(x), 4);
  return true;
}

// Interpolates kPoints x kPoints pixels. As in PIL, columns outside repeat the edge, rows below it the last sum.
template <int kPoints, class Between>
bool read_between(const View& picture, double x, double y, std::uint8_t* out, Between between) {
  if (!inside(picture, x, y)) return false;
  x -= 0.5;
  y -= 0.5;
  const double floor_x = std::floor(x);
  const double floor_y = std::floor(y);
  const int left = static_cast<int>(floor_x) - (kPoints / 2 - 1);
  const int top = static_cast<int>(floor_y) - (kPoints / 2 - 1);
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
      sums[static_cast<std::size_t>(j)] = between(values, x - floor_x);
    }
    out[c] = static_cast<std::uint8_t>(std::clamp(between(sums, y - floor_y), 0.0, 255.0));
  }
  out[3] = 255;
  return true;
}

double linear(const std::array<double, 2>& v, double d) {
  return v[0] + (v[1] - v[0]) * d;
}

double cubic(const std::array<double, 4>& v, double d) {
  const double p2 = -v[0] + v[2];
  const double p3 = 2 * (v[0] - v[1]) + v[2] - v[3];
  const double p4 = -v[0] + v[1] - v[2] + v[3];
  return v[1] + d * (p2 + d * (p3 + d * p4));
}

}  // namespace

void transform_affine(const View& picture, ImageSize size, const AffineMatrix& m, Filter filter, Color fill,
                      RowSink& sink) {
  if (filter == Filter::kNearest) {
    const bool scales = m[1] == 0 && m[3] == 0;
    if (!scales && fits_fixed(m, size)) return nearest_fixed(picture, size, m, fill, sink);
    const auto read = [&](double x, double y, std::uint8_t* out) { return read_nearest(picture, x, y, out); };
    return each_pixel(size, fill, sink, Summed(m), read);
  }
  if (filter == Filter::kBicubic) {
    return each_pixel(size, fill, sink, Multiplied{m}, [&](double x, double y, std::uint8_t* out) {
      return read_between<4>(picture, x, y, out, cubic);
    });
  }
  each_pixel(size, fill, sink, Multiplied{m},
             [&](double x, double y, std::uint8_t* out) { return read_between<2>(picture, x, y, out, linear); });
}

}  // namespace lockstep::data
