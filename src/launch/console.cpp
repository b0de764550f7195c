#include "launch/console.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::launch {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

void add(std::string& queue, std::string_view prefix, std::string_view text) {
  queue += prefix;
  queue += text;
}

}  // namespace

void Console::line(const void* owner, std::string_view prefix, std::string_view text) {
  const bool others_progress = open_ == Open::kProgress && owner_ != owner;
  if (open_ == Open::kPartial && owner_ == owner) {
    prefix = {};
  } else if (open_ == Open::kPartial) {
    queue_ += '\n';
  } else if (open_ == Open::kProgress) {
    queue_ += kClearLine;
  }
  add(queue_, prefix, text);
  queue_ += '\n';
  if (others_progress) {
    queue_ += progress_;
  } else {
    open_ = Open::kNothing;
  }
}

void Console::partial(const void* owner, std::string_view prefix, std::string_view text) {
  if (open_ == Open::kProgress) return line(owner, prefix, text);
  if (open_ == Open::kPartial && owner_ != owner) queue_ += '\n';
  if (open_ == Open::kPartial && owner_ == owner) prefix = {};
  add(queue_, prefix, text);
  open_ = Open::kPartial;
  owner_ = owner;
}

void Console::progress(const void* owner, std::string_view prefix, std::string_view text) {
  if (open_ == Open::kPartial && owner_ != owner) queue_ += '\n';
  progress_.assign(prefix);
  progress_ += text;
  queue_ += kClearLine;
  queue_ += progress_;
  open_ = Open::kProgress;
  owner_ = owner;
}

void Console::raw(const void* owner, std::string_view bytes) {
  if (bytes.empty()) return;
  queue_ += bytes;
  open_ = bytes.ends_with('\n') ? Open::kNothing : Open::kPartial;
  owner_ = owner;
}

void Console::flush() {
  while (has_pending() && !closed_) {
    // A pipe that poll calls writable takes PIPE_BUF bytes without blocking; making it non-blocking would change it for
    // everyone who shares it.
    pollfd waited{fd_, POLLOUT, 0};
    if (poll(&waited, 1, 0) <= 0) break;
    const std::size_t size = std::min<std::size_t>(queue_.size() - written_, PIPE_BUF);
    const ssize_t written = write(fd_, queue_.data() + written_, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) break;
    if (written < 0) {
      closed_ = true;
      break;
    }
    written_ += static_cast<std::size_t>(written);
  }
  if (closed_ || !has_pending()) {
    queue_.clear();
    written_ = 0;
  } else if (written_ > kQueueLimit) {
    queue_.erase(0, written_);
    written_ = 0;
  }
}

}  // namespace lockstep::launch
