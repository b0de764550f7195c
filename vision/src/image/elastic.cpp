#include <cmath>
#include <cstring>

#include "image/affine.h"
#include "image/fixed_point.h"

namespace lockstep::data {
namespace {

// The centres of `size` pixels between -1 and 1, as torch's linspace computes them: from both ends to the middle.
void pixel_centres(int size, std::vector<float>& centres) {
  centres.resize(static_cast<std::size_t>(size));
  const auto last = static_cast<float>((size - 1.0) / size);
  const float step = size > 1 ? (last + last) / static_cast<float>(size - 1) : 0.0F;
  for (int i = 0; i < size; ++i) {
    const float from_start = -last + step * static_cast<float>(i);
    const float from_end = last - step * static_cast<float>(size - 1 - i);
    centres[static_cast<std::size_t>(i)] = i < size / 2 || size == 1 ? from_start : from_end;
  }
}

void sample_nearest(const GridRow& row, Color fill, std::uint8_t* out) {
  for (int i = 0; i < row.count; ++i, out += Image::kBytesPerPixel) {
    const float x = std::nearbyint(row.x[i]);
    const float y = std::nearbyint(row.y[i]);
    if (x >= 0.0F && x < static_cast<float>(row.width) && y >= 0.0F && y < static_cast<float>(row.height)) {
      std::memcpy(out, row.pixels + static_cast<std::int64_t>(y) * row.stride + 4 * static_cast<std::int64_t>(x), 4);
    } else {
      fill_pixels(out, 1, fill);
    }
  }
}

}  // namespace

void transform_elastic(const View& picture, const Displacement& displacement, Interpolation filter, Color fill,
                       RowSink& sink) {
  thread_local std::vector<float> centres_x, centres_y, positions;
  pixel_centres(picture.width, centres_x);
  pixel_centres(picture.height, centres_y);
  const auto width = static_cast<std::size_t>(picture.width);
  positions.resize(2 * width);
  float* xs = positions.data();
  float* ys = xs + width;
  const float half_width = static_cast<float>(picture.width) / 2.0F;
  const float half_height = static_cast<float>(picture.height) / 2.0F;
  const GridRow row{picture.pixels,
                    static_cast<std::int64_t>(picture.stride),
                    picture.width,
                    picture.height,
                    xs,
                    ys,
                    picture.width,
                    {static_cast<float>(fill[0]), static_cast<float>(fill[1]), static_cast<float>(fill[2]), 255.0F}};
  for (int y = 0; y < picture.height; ++y) {
    const float* dx = displacement.x.data() + static_cast<std::size_t>(y) * width;
    const float* dy = displacement.y.data() + static_cast<std::size_t>(y) * width;
    const float centre_y = centres_y[static_cast<std::size_t>(y)];
    for (std::size_t x = 0; x < width; ++x) {
      xs[x] = ((centres_x[x] + dx[x]) + 1.0F) * half_width - 0.5F;
      ys[x] = ((centre_y + dy[x]) + 1.0F) * half_height - 0.5F;
    }
    std::uint8_t* out = sink.begin(y);
    if (filter == Interpolation::kNearest) {
      sample_nearest(row, fill, out);
    } else {
      image_kernels().sample_grid(row, out);
    }
    sink.end(y);
  }
}

}  // namespace lockstep::data
