// Letters of 5 x 7 dots, for pictures that need a few words.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/data/image.h"

namespace lockstep::data {

inline constexpr int kLetterWidth = 6;   // with the gap behind it
inline constexpr int kLetterHeight = 9;  // with what hangs below the line and the gap

// Light letters from (left, top) on, as far as they fit into `width` pixels; a text that is too long ends in "..".
// What is not ASCII is shown as '?'.
void draw_text(Image& image, int left, int top, int width, std::string_view text);

}  // namespace lockstep::data
