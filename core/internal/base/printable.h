// Names from outside (paths, classes) in messages: a name must not move a terminal's cursor or forge a line.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The text with each byte of a control character (C0 with newline, DEL, C1, line separators, bidirectional controls)
// or of invalid UTF-8 as \xNN. Text that is printable already stays as it is.
std::string printable(std::string_view text);

}  // namespace lockstep
