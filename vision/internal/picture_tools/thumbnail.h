// Small copies of pictures.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/image/image.h"

namespace lockstep::data {

// The picture as a JPEG, made smaller where a side is longer than `longest_side`. kInvalidArgument without pixels.
Result<std::vector<std::uint8_t>> thumbnail(const Image& picture, int longest_side);

// Many pictures as one, in rows of `columns`. Each is made smaller where a side is longer than `side`, and stands in
// the middle of a black square of that side. A null pointer is a black square.
Result<Image> contact_sheet(std::span<const Image* const> pictures, int side, int columns);

}  // namespace lockstep::data
