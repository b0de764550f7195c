#include "launch/output/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "launch/output/tail.h"

namespace lockstep::launch {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

void add(std::string& queue, std::string_view prefix, std::string_view text) {
  queue += prefix;
  queue += text;
}

}  // namespace

void Console::line(const void* owner, std::string_view prefix, std::string_view text) {
  if (!drop(1)) add_line(owner, prefix, text);
}

void Console::add_line(const void* owner, std::string_view prefix, std::string_view text) {
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
  if (drop(0)) return;
  if (open_ == Open::kProgress) return add_line(owner, prefix, text);
  if (open_ == Open::kPartial && owner_ != owner) queue_ += '\n';
  if (open_ == Open::kPartial && owner_ == owner) prefix = {};
  add(queue_, prefix, text);
  open_ = Open::kPartial;
  owner_ = owner;
}

void Console::progress(const void* owner, std::string_view prefix, std::string_view text) {
  if (drop(0)) return;
  if (open_ == Open::kPartial && owner_ != owner) queue_ += '\n';
  progress_.assign(prefix);
  progress_ += text;
  // A bar that goes on in the next row could not be replaced by the next one.
  winsize size{};
  if (ioctl(writer_->fd(), TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
    progress_ = fit_to_columns(progress_, size.ws_col - 1);
  }
  queue_ += kClearLine;
  queue_ += progress_;
  open_ = Open::kProgress;
  owner_ = owner;
}

void Console::raw(const void* owner, std::string_view bytes) {
  if (bytes.empty() || drop(static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n')))) return;
  queue_ += bytes;
  open_ = bytes.ends_with('\n') ? Open::kNothing : Open::kPartial;
  owner_ = owner;
}

void Console::say(std::string_view text) {
  add_line(nullptr, "", text);
  flush();
}

bool Console::drop(std::size_t lines) {
  if (pending() > kHardLimit) {
    dropped_lines_ += lines;
    return true;
  }
  if (dropped_lines_ > 0 && !full()) {
    const std::size_t dropped = std::exchange(dropped_lines_, 0);
    say(fmt::format("lockstep: {} lines were dropped here: the reader was too slow", dropped));
  }
  return false;
}

void Console::flush() {
  writer_->add(queue_);
  queue_.clear();
}

}  // namespace lockstep::launch
