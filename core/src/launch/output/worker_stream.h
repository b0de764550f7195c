// One output stream of one worker, and the pseudo-terminal that it may be.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launch/output/console.h"
#include "launch/output/log_files.h"
#include "launch/output/tail.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// A pseudo-terminal (pty) for a worker's stdout. C and C++ programs write to a terminal whenever a line ends, but to a
// pipe or a file only when 4 KiB are full. If such a program aborts, the full lines that it has not written are lost.
struct Pty {
  Fd reader;  // of what is written to `writer`; EIO at the end, when no process has `writer` open
  Fd writer;  // a terminal of 80 columns; EIO when `reader` is closed
};

// Bytes pass unchanged. The terminal sends no signals, and does not become a process's controlling terminal unless a
// session leader opens it by its name to read and write. Both descriptors are closed on exec. An error: the system
// gives no pseudo-terminals to this process, as in some containers, or all of them are in use
// (/proc/sys/kernel/pty/max).
Result<Pty> open_pty();

// One output stream of one worker. It is read from a pipe or a pseudo-terminal, and goes line by line to the console
// and to a log file. Both are written in the background.
class WorkerStream {
 public:
  using Clock = std::chrono::steady_clock;

  // A partial line is shown after this time, or when it reaches this length.
  static constexpr std::chrono::milliseconds kPartialDelay{200};
  static constexpr std::size_t kPartialBytes = std::size_t{64} << 10;
  // For SIGPIPE to reach a worker, by way of the supervisor, before its writes fail.
  static constexpr std::chrono::seconds kTimeToEnd{1};

  enum class Style {
    kRaw,       // bytes unchanged: for a single worker
    kLines,     // whole lines with a prefix; for a line with '\r' its final text
    kProgress,  // like kLines, but lines that end with '\r' are shown as they change
  };

  struct Settings {
    std::string prefix;
    Style style = Style::kLines;
    Console* console = nullptr;  // not owned; nullptr: log file only
    Tail* tail = nullptr;        // not owned; may be nullptr
    bool close_with_console = false;
    bool terminal = false;  // the worker writes to a pseudo-terminal
  };

  // `log`: nullptr for none.
  WorkerStream(Fd reader, std::unique_ptr<LogFile> log, Settings settings);

  int fd() const { return reader_.get(); }
  bool open() const { return reader_.valid(); }
  // Whether to read now: the stream is open, and the console and the log file have room. If the console's reader has
  // closed its end, this closes a pipe: the worker's next write gets SIGPIPE, as it would without a launcher. A
  // pseudo-terminal stays open, because a write to a closed one is an error that many programs ignore. What the worker
  // has written to it until now is dropped.
  bool wants_read();
  // Whether the worker has written to its pseudo-terminal after the console's reader had left: it is to get SIGPIPE.
  bool written_in_vain() const { return written_in_vain_ && !told_at_; }
  // To call when the worker has been sent SIGPIPE. If the worker still writes after kTimeToEnd, the pseudo-terminal is
  // closed, and the worker's next write gets EIO.
  void told() { told_at_ = Clock::now(); }
  // Reads at most one buffer. Returns whether it read anything.
  bool read_some();
  // When the partial line must be shown; nullopt: none is waiting.
  std::optional<Clock::time_point> partial_due() const;
  void show_partial_if_due(Clock::time_point now);
  // Shows an incomplete last line, closes the stream and releases the log file.
  void finish();

 private:
  void take(std::string_view bytes);
  void take_lines(std::string_view bytes);
  void drop_what_is_written();
  // Whether a worker that writes after the console's reader has left gets SIGPIPE.
  bool ends_with_console() const { return settings_.close_with_console && log_ == nullptr; }

  Fd reader_;  // the end of a pipe or a pseudo-terminal from which the worker's output is read
  std::unique_ptr<LogFile> log_;
  Settings settings_;
  std::string partial_;
  bool has_progress_ = false;     // partial_ holds a '\r'
  bool console_left_ = false;     // what was written to a pseudo-terminal before the console's reader left is dropped
  bool written_in_vain_ = false;  // to a pseudo-terminal, after the console's reader had left
  std::optional<Clock::time_point> told_at_;
  Clock::time_point partial_since_;
};

}  // namespace lockstep::launch
