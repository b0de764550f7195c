// One output stream of one worker: read from a pipe, handed on to the console line by line and to a log file.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "launch/console.h"
#include "launch/lossy_file.h"
#include "launch/tail.h"
#include "lockstep/base/fd.h"

namespace lockstep::launch {

class WorkerStream {
 public:
  using Clock = std::chrono::steady_clock;

  // A partial line is shown after this time, or when it is this long.
  static constexpr std::chrono::milliseconds kPartialDelay{200};
  static constexpr std::size_t kPartialBytes = std::size_t{64} << 10;

  enum class Style {
    kRaw,       // bytes as they come: the only worker
    kLines,     // whole lines with a prefix; of a line with '\r' the final state
    kProgress,  // the same, and lines ended by '\r' are shown as they change
  };

  struct Settings {
    std::string prefix;
    Style style = Style::kLines;
    Console* console = nullptr;  // not owned; nullptr: log file only
    Tail* tail = nullptr;        // not owned; may be nullptr
    bool close_with_console = false;
    std::string log_path;  // of the log file, for messages
  };

  WorkerStream(Fd pipe, Fd log_file, Settings settings);

  int fd() const { return pipe_.get(); }
  bool open() const { return pipe_.valid(); }
  // Whether to read now: there is something to read from, and room for it. A worker whose reader has gone is told so
  // the way the system does: its pipe is closed and its next write gets SIGPIPE.
  bool wants_read();
  // Reads what is there, at most one buffer. Answers whether it got anything.
  bool read_some();
  // When a partial line is due; nothing: none is waiting.
  std::optional<Clock::time_point> partial_due() const;
  void show_partial_if_due(Clock::time_point now);
  // Shows what is left of a line and closes the pipe.
  void finish();

 private:
  void take(std::string_view bytes);
  void take_lines(std::string_view bytes);
  void log(std::string_view bytes);

  Fd pipe_;
  Fd log_file_;
  LossyFile log_;
  bool refused_ = false;  // by the log file
  Settings settings_;
  std::string partial_;
  bool has_progress_ = false;  // partial_ holds a '\r'
  Clock::time_point partial_since_;
};

}  // namespace lockstep::launch
