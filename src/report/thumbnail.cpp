#include "report/thumbnail.h"

#include <algorithm>

#include "data/image/memory_errors.h"
#include "data/image/resample.h"
#include "data/tools/encode_jpeg.h"

namespace lockstep::report {

Result<std::vector<std::uint8_t>> thumbnail(const data::Image& picture, int longest_side) {
  constexpr int kQuality = 85;
  if (picture.empty()) return Status(ErrorCode::kInvalidArgument, "a picture without pixels");
  const int longer = std::max(picture.width(), picture.height());
  return data::or_out_of_memory("a thumbnail", [&]() -> Result<std::vector<std::uint8_t>> {
    if (longer <= longest_side) return data::encode_jpeg(picture, kQuality);
    const auto scaled = [&](int side) {
      return static_cast<int>(std::max<std::int64_t>(1, std::int64_t{side} * longest_side / longer));
    };
    const data::ImageSize size{scaled(picture.width()), scaled(picture.height())};
    return data::encode_jpeg(data::resized(picture, size, data::Filter::kBilinear), kQuality);
  });
}

}  // namespace lockstep::report
