#pragma once

#include <limits>
#include <string>

namespace lockstep::report {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lockstep::report
