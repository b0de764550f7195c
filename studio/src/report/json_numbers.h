// Numbers that JSON lacks, as text: "NaN", "Infinity", "-Infinity", the words of JavaScript and Python's float().
#pragma once

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::report {

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

}  // namespace lockstep::report
