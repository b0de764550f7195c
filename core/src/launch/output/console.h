// The launcher's own output streams.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/output/background_writer.h"
#include "launch/process/signal_watch.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// Console: the launcher's own stdout or stderr, written in the background, shared by the streams of many workers.
//
// Callers should stop while it is full: then a slow reader slows the workers, and nothing is lost. A caller that cannot
// wait may go on. Beyond the hard limit lines are dropped, and a line says how many are missing.
//
// Lines stay whole. The last line on the screen may have no newline. It is a partial line, which its owner may
// continue, or a progress line (text that ends with '\r'), which is printed again below other lines.
class Console {
 public:
  // `terminal`: progress lines are shown as they change.
  Console(std::unique_ptr<BackgroundWriter> writer, bool terminal) : writer_(std::move(writer)), terminal_(terminal) {}

  // An owner is identified by its address.
  void line(const void* owner, std::string_view prefix, std::string_view text);
  void partial(const void* owner, std::string_view prefix, std::string_view text);
  void progress(const void* owner, std::string_view prefix, std::string_view text);
  // Prints bytes unchanged.
  void raw(const void* owner, std::string_view bytes);
  // Prints a line of the launcher itself, which is never dropped.
  void say(std::string_view text);

  BackgroundWriter& writer() const { return *writer_; }
  bool terminal() const { return terminal_; }
  // The reader has closed its end: everything is dropped.
  bool closed() const { return writer_->closed(); }
  // Too much is waiting: callers should stop.
  bool full() const { return pending() > kQueueLimit; }

  // Passes everything to the writer.
  void flush();

 private:
  // Less than the largest size of a pipe, see Consoles::finish.
  static constexpr std::size_t kQueueLimit = std::size_t{512} << 10;
  static constexpr std::size_t kHardLimit = std::size_t{4} << 20;
  enum class Open { kNothing, kPartial, kProgress };

  std::size_t pending() const { return queue_.size() + writer_->pending(); }
  void add_line(const void* owner, std::string_view prefix, std::string_view text);
  // Whether a text of `lines` lines must be dropped. Counts them if so.
  bool drop(std::size_t lines);

  std::unique_ptr<BackgroundWriter> writer_;
  bool terminal_;
  std::string queue_;
  std::size_t dropped_lines_ = 0;
  Open open_ = Open::kNothing;
  const void* owner_ = nullptr;
  std::string progress_;
};

// Consoles: the launcher's own output streams.

// The launcher's stdout and stderr; a single console if both are the same file or terminal. Outlives all worker groups.
// While it lives, the launcher's log messages go there too.
class Consoles {
 public:
  static Result<std::unique_ptr<Consoles>> open();
  ~Consoles();
  Consoles(const Consoles&) = delete;
  Consoles& operator=(const Consoles&) = delete;

  Console& out() { return *out_; }
  Console& err() { return err_ != nullptr ? *err_ : *out_; }
  bool same() const { return err_ == nullptr; }

  void flush();
  void add_to(std::vector<pollfd>& polled);
  // Handles the writers' events. Reports an error of stdout on stderr.
  void serve();
  // Blocks until all output is written or its reader has closed. Gives up at a signal, at the deadline, and if no
  // reader has taken anything for `stall_timeout`. A pipe then still holds as much of the rest as it can.
  void finish(SignalWatch& signals, Deadline deadline, std::chrono::nanoseconds stall_timeout);

 private:
  Consoles(std::unique_ptr<Console> out, std::unique_ptr<Console> err) : out_(std::move(out)), err_(std::move(err)) {}
  std::size_t pending();
  // Returns whether all output is written.
  bool wait_for_readers(SignalWatch& signals, Deadline deadline, std::chrono::nanoseconds stall_timeout);

  std::unique_ptr<Console> out_;
  std::unique_ptr<Console> err_;  // null: out_ is used
};

}  // namespace lockstep::launch
