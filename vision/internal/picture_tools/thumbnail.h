// Pictures as JPEG, and small copies of them.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/image/image.h"

namespace lockstep::data {

// 4:2:0, baseline. Pictures with only grey pixels become grey JPEGs, which are smaller. `quality` is cjpeg's, 1 to 100.
// `orientation`: EXIF's, 1 to 8, of pixels that are not turned yet; other than 1, the file says it.
Result<std::vector<std::uint8_t>> encode_jpeg(const Image& image, int quality, int orientation = 1);

// The picture as a JPEG, made smaller where a side is longer than `longest_side`. kInvalidArgument without pixels.
Result<std::vector<std::uint8_t>> thumbnail(const Image& picture, int longest_side);

}  // namespace lockstep::data
