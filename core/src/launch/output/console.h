// Console: the launcher's own stdout or stderr, written in the background, shared by the streams of many workers.
//
// Callers should stop while it is full: then a slow reader slows the workers, and nothing is lost. A caller that cannot
// wait may go on. Beyond the hard limit lines are dropped, and a line says how many are missing.
//
// Lines stay whole. The last line on the screen may have no newline. It is a partial line, which its owner may
// continue, or a progress line (text that ends with '\r'), which is printed again below other lines.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "launch/output/background_writer.h"

namespace lockstep::launch {

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

}  // namespace lockstep::launch
