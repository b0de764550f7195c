// Console: the launcher's own stdout or stderr, written without ever blocking, shared by the streams of many workers.
//
// Lines are kept whole. Two things may stand at the end of the screen without a newline: a partial line, which its
// owner may continue, and a progress line (text that was ended by '\r'), which moves down below whatever else is
// printed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launch {

class Console {
 public:
  // `fd` stays the caller's. `terminal` decides about progress lines.
  Console(int fd, bool terminal) : fd_(fd), terminal_(terminal) {}

  // Owners are told apart by address.
  void line(const void* owner, std::string_view prefix, std::string_view text);
  void partial(const void* owner, std::string_view prefix, std::string_view text);
  void progress(const void* owner, std::string_view prefix, std::string_view text);
  // Bytes as they are.
  void raw(const void* owner, std::string_view bytes);

  int fd() const { return fd_; }
  bool terminal() const { return terminal_; }
  // The reader has gone: everything is dropped.
  bool closed() const { return closed_; }
  bool has_pending() const { return written_ < queue_.size(); }
  // Too much is waiting: whoever fills this console should stop reading.
  bool full() const { return queue_.size() - written_ > kQueueLimit; }

  // Writes what can be written at once.
  void flush();

 private:
  static constexpr std::size_t kQueueLimit = 1 << 20;
  enum class Open { kNothing, kPartial, kProgress };

  int fd_;
  bool terminal_;
  bool closed_ = false;
  std::string queue_;
  std::size_t written_ = 0;
  Open open_ = Open::kNothing;
  const void* owner_ = nullptr;
  std::string progress_;
};

}  // namespace lockstep::launch
