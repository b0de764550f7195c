// The end of a stream, for a failure report: its last lines (at most 20 and 8 KiB), and the message of an error whose
// call stack is longer than that. And what a terminal shows of a line.
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
  // The message of a c10::Error that has ended the process, if LibTorch's call stack is the end of the stream: the
  // stack comes behind the message, and has up to 64 long lines. Empty: the stream ends in another way. At most 20
  // lines, 8 KiB.
  std::string message_before_stack() const;

  // Of a longer stream: what append() needs of its end. LibTorch's longest call stacks fit.
  static constexpr std::size_t kNeeded = std::size_t{64} << 10;

 private:
  std::string bytes_;
};

// At most the last `bytes` of a text in UTF-8. It begins with a whole letter.
std::string_view end_of_text(std::string_view text, std::size_t bytes);

// The part of a line that a terminal shows after its carriage returns.
std::string_view visible_part(std::string_view line);

// Without the beginning of a letter (UTF-8) whose rest is still to come.
std::string_view whole_letters(std::string_view text);

// As much of a line as fits; of what does not, the escape sequences.
std::string fit_to_columns(std::string_view text, std::size_t columns);

}  // namespace lockstep::launch
