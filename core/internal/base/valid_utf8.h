// Text from outside for formats that take UTF-8 alone. (printable.h is for text that people read.) Defined in
// printable.cpp.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The text with U+FFFD for each byte that is not UTF-8.
std::string valid_utf8(std::string_view text);

// The characters of the text, with U+DC00 + byte for each byte that is not UTF-8: a file's name as Python has it.
std::u32string surrogate_escaped(std::string_view text);

}  // namespace lockstep
