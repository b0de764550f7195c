// The last lines of a stream, for a failure report. At most 20 lines and 8 KiB.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launch {

class Tail {
 public:
  static constexpr std::size_t kMaxLines = 20;
  static constexpr std::size_t kMaxBytes = std::size_t{8} << 10;

  void append(std::string_view bytes);
  // Without line ends. A line with '\r' is reduced to the text that a terminal would show.
  std::vector<std::string> lines() const;

 private:
  std::string bytes_;
};

// The part of a line that a terminal shows after its carriage returns.
std::string_view visible_part(std::string_view line);

}  // namespace lockstep::launch
