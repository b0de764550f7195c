// Text from outside (names, paths, classes), for messages and for formats that take UTF-8 alone.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// For messages, in which a name must not move a terminal's cursor or forge a line: the text with each byte of a control
// character (C0 with newline, DEL, C1, line separators, bidirectional controls) or of invalid UTF-8 as \xNN. Text that
// is printable already stays as it is.
std::string printable(std::string_view text);

// For formats that take UTF-8 alone: the text with U+FFFD for each byte that is not UTF-8.
std::string valid_utf8(std::string_view text);

// The characters of the text, with U+DC00 + byte for each byte that is not UTF-8: a file's name as Python has it.
std::u32string surrogate_escaped(std::string_view text);

}  // namespace lockstep
