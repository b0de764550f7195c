#include "picture_tools/thumbnail.h"

#include <algorithm>
#include <cstring>

#include "base/arithmetic.h"
#include "image/memory_errors.h"
#include "image/resample.h"
#include "picture_tools/encode_jpeg.h"

namespace lockstep::data {
namespace {

bool fits_side(const Image& picture, int side) {
  return std::max(picture.width(), picture.height()) <= side;
}

// So that the longer side is `side`.
Image scaled_to(const Image& picture, int side) {
  const int longer = std::max(picture.width(), picture.height());
  const auto scaled = [&](int own) {
    return static_cast<int>(std::max<std::int64_t>(1, std::int64_t{own} * side / longer));
  };
  return resized(picture, {scaled(picture.width()), scaled(picture.height())}, Interpolation::kBilinear);
}

void put_picture(const Image& picture, int left, int top, Image& sheet) {
  const std::size_t offset = std::size_t{Image::kBytesPerPixel} * static_cast<std::size_t>(left);
  for (int y = 0; y < picture.height(); ++y) {
    std::memcpy(sheet.row(top + y) + offset, picture.row(y), picture.row_bytes());
  }
}

}  // namespace

Result<std::vector<std::uint8_t>> thumbnail(const Image& picture, int longest_side) {
  constexpr int kQuality = 85;
  if (picture.empty()) return Status(ErrorCode::kInvalidArgument, "a picture without pixels");
  return or_out_of_memory("a thumbnail", [&]() -> Result<std::vector<std::uint8_t>> {
    if (fits_side(picture, longest_side)) return encode_jpeg(picture, kQuality);
    return encode_jpeg(scaled_to(picture, longest_side), kQuality);
  });
}

Result<Image> contact_sheet(std::span<const Image* const> pictures, int side, int columns) {
  return or_out_of_memory("a sheet of pictures", [&]() -> Result<Image> {
    const int count = static_cast<int>(pictures.size());
    Image sheet(std::min(count, columns) * side, ceil_divide(count, columns) * side);
    for (int y = 0; y < sheet.height(); ++y) std::memset(sheet.row(y), 0, sheet.row_bytes());
    for (int i = 0; i < count; ++i) {
      const Image* picture = pictures[static_cast<std::size_t>(i)];
      if (picture == nullptr || picture->empty()) continue;
      const Image small = fits_side(*picture, side) ? *picture : scaled_to(*picture, side);
      put_picture(small, i % columns * side + (side - small.width()) / 2,
                  i / columns * side + (side - small.height()) / 2, sheet);
    }
    return sheet;
  });
}

}  // namespace lockstep::data
