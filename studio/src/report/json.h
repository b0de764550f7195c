// JSON of logs and tables: numbers that JSON lacks, and no more levels than the stack has room for.
#pragma once

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lockstep::report {

// Numbers that JSON lacks, as text: "NaN", "Infinity", "-Infinity", the words of JavaScript and Python's float().
inline nlohmann::ordered_json to_json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

// Throws nlohmann::json::type_error for anything else than a number or these words.
inline double from_json_number(const nlohmann::ordered_json& json) {
  if (!json.is_string()) return json.get<double>();
  const auto& text = json.get_ref<const std::string&>();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return nlohmann::ordered_json().get<double>();  // throws
}

// Logs and tables have fewer levels. What other programs put into a log has a few more.
inline constexpr int kMostLevels = 16;

// The library copies and writes values by recursion, so text with many levels would overflow the stack. Text with more
// than kMostLevels is as text that is no JSON: discarded. Of members with the same name the last one counts.
nlohmann::ordered_json parse_json(std::string_view text);

}  // namespace lockstep::report
