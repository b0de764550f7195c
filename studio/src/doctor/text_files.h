// Small files of /proc and /sys.
#pragma once

#include <fstream>
#include <string>

namespace lockstep::doctor {

// The first line; empty if the file cannot be read.
inline std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "always [madvise] never" -> "madvise"
inline std::string chosen_of(const std::string& line) {
  const std::size_t open = line.find('[');
  const std::size_t close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return line;
  return line.substr(open + 1, close - open - 1);
}

}  // namespace lockstep::doctor
