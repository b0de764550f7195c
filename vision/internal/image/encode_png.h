// Encodes pictures as PNG.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/image/image.h"

namespace lockstep::data {

// RGB with 8 bits. kInvalidArgument without pixels, kIo when libpng fails.
Result<std::vector<std::uint8_t>> encode_png(const Image& image);

}  // namespace lockstep::data
