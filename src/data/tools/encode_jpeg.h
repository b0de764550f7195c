// Pictures as JPEG, for packs.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/data/image/image.h"

namespace lockstep::data {

// 4:2:0, baseline; pictures whose pixels are all grey as grey, which is smaller. `quality` as cjpeg's, 1 to 100.
Result<std::vector<std::uint8_t>> encode_jpeg(const Image& image, int quality);

}  // namespace lockstep::data
