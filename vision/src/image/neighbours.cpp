// Operations that mix or move neighbouring pixels: smoothing, padding.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/blur.h"
#include "image/color.h"
#include "image/fixed_point.h"

namespace lockstep::data {
namespace {

// The outermost rows and columns stay unchanged. `out` has room for the row and kSlack bytes.
void smooth_row(const View& picture, int y, std::uint8_t* out) {
  const std::uint8_t* row = picture.row(y);
  const std::ptrdiff_t bytes = std::ptrdiff_t{4} * picture.width;
  if (y == 0 || y == picture.height - 1 || picture.width < 3) {
    std::memcpy(out, row, static_cast<std::size_t>(bytes));
    return;
  }
  image_kernels().smooth(picture.row(y - 1) + 4, row + 4, picture.row(y + 1) + 4, static_cast<int>(bytes) - 8, out + 4);
  std::memcpy(out, row, 4);
  std::memcpy(out + bytes - 4, row + bytes - 4, 4);
}

int source_of(int i, int size, PaddingMode mode) {
  if (i >= 0 && i < size) return i;
  switch (mode) {
    case PaddingMode::kConstant: return -1;
    case PaddingMode::kEdge: return std::clamp(i, 0, size - 1);
    case PaddingMode::kReflect: return mirrored(i, size, false);
    case PaddingMode::kSymmetric: return mirrored(i, size, true);
  }
  return -1;
}

}  // namespace

void adjust_sharpness(const View& picture, float factor, RowSink& sink) {
  if (factor == 1.0F) return copy_rows(picture, sink);
  thread_local std::vector<std::uint8_t> smooth;
  smooth.resize(static_cast<std::size_t>(picture.width) * 4 + Image::kSlack);
  for (int y = 0; y < picture.height; ++y) {
    smooth_row(picture, y, smooth.data());
    image_kernels().blend(smooth.data(), picture.row(y), factor, factor < 0.0F || factor > 1.0F,
                          std::int64_t{4} * picture.width, sink.begin(y));
    sink.end(y);
  }
}

void pad(const View& picture, const PadAmounts& padding, std::array<std::uint8_t, 3> fill, PaddingMode mode,
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
