// Words in messages: how they are shown, and which known ones were meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::config {

// The word in quotes, with control characters made visible, and cut when it is long.
std::string shown(std::string_view word);

// "; the nearest known one is 'x'", else "; known are a, b, c".
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

}  // namespace lockstep::config
