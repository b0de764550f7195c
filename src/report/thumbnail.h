// Small copies of pictures.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/data/image/image.h"

namespace lockstep::report {

// The picture as a JPEG, made smaller where a side is longer than `longest_side`. kInvalidArgument without pixels.
Result<std::vector<std::uint8_t>> thumbnail(const data::Image& picture, int longest_side);

}  // namespace lockstep::report
