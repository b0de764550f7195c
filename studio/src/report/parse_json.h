// JSON from files and programs that may be hostile.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace lockstep::report {

// Logs and tables have fewer levels. What other programs put into a log has a few more.
inline constexpr int kMostLevels = 16;

// The library copies and writes values by recursion, so text with many levels would overflow the stack. Text with more
// than kMostLevels is as text that is no JSON: discarded. Objects may have any number of members: the time grows in
// proportion to the text. Of members with the same name the last one counts.
nlohmann::ordered_json parse_json(std::string_view text);

}  // namespace lockstep::report
