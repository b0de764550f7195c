// Console: the launcher's own stdout or stderr, written in the background, shared by the streams of many workers.
//
// Whoever fills it should stop while it is full, so that a slow reader slows the workers and nothing is lost. Those who
// cannot wait go on: what exceeds all bounds is dropped, and a line says how many lines are missing.
//
// Lines are kept whole. Two things may stand at the end of the screen without a newline: a partial line, which its
// owner may continue, and a progress line (text that was ended by '\r'), which moves down below whatever else is
// printed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "launch/background_writer.h"

namespace lockstep::launch {

class Console {
 public:
  // `terminal` decides about progress lines.
  Console(std::unique_ptr<BackgroundWriter> writer, bool terminal) : writer_(std::move(writer)), terminal_(terminal) {}

  // Owners are told apart by address.
  void line(const void* owner, std::string_view prefix, std::string_view text);
  void partial(const void* owner, std::string_view prefix, std::string_view text);
  void progress(const void* owner, std::string_view prefix, std::string_view text);
  // Bytes as they are.
  void raw(const void* owner, std::string_view bytes);
  // A line of the launcher's own, which is never dropped.
  void say(std::string_view text);

  BackgroundWriter& writer() const { return *writer_; }
  bool terminal() const { return terminal_; }
  // The reader has gone: everything is dropped.
  bool closed() const { return writer_->closed(); }
  // Too much is waiting: whoever fills this console should stop.
  bool full() const { return pending() > kQueueLimit; }

  // Hands everything over to be written.
  void flush();

 private:
  // Less than a pipe can be made to hold, see Consoles.
  static constexpr std::size_t kQueueLimit = std::size_t{512} << 10;
  static constexpr std::size_t kHardLimit = std::size_t{4} << 20;
  enum class Open { kNothing, kPartial, kProgress };

  std::size_t pending() const { return queue_.size() + writer_->pending(); }
  void add_line(const void* owner, std::string_view prefix, std::string_view text);
  // Whether a text of so many lines has to be dropped.
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
