#include "pickle_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t kBuffer = 1 << 16;

}  // namespace

void PickleInput::fill() {
  if (next_ >= end_) {
    throw CheckpointError(ErrorCode::kCorrupt, fmt::format("damaged: its pickle ends too early, at byte {}", end_));
  }
  buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kBuffer, end_ - next_)));
  file_.read(next_, buffer_.data(), buffer_.size());
  next_ += buffer_.size();
  used_ = 0;
}

std::uint8_t PickleInput::byte() {
  if (used_ == buffer_.size()) fill();
  return static_cast<std::uint8_t>(buffer_[used_++]);
}

std::string PickleInput::bytes(std::uint64_t count) {
  if (count > left()) {
    throw CheckpointError(ErrorCode::kCorrupt, fmt::format("damaged: its pickle has a text of {} bytes at byte {}, but "
                                                           "only {} bytes are left",
                                                           count, position(), left()));
  }
  std::string text;
  text.reserve(count);
  while (text.size() < count) {
    if (used_ == buffer_.size()) fill();
    const std::size_t piece = std::min<std::size_t>(buffer_.size() - used_, count - text.size());
    text.append(buffer_.data() + used_, piece);
    used_ += piece;
  }
  return text;
}

std::string PickleInput::line(std::size_t most) {
  const std::uint64_t begin = position();
  std::string text;
  for (std::uint8_t next = byte(); next != '\n'; next = byte()) {
    if (text.size() == most) {
      throw CheckpointError(ErrorCode::kCorrupt,
                            fmt::format("damaged: its pickle has a name of over {} bytes at byte {}", most, begin));
    }
    text += static_cast<char>(next);
  }
  return text;
}

std::uint64_t PickleInput::number(std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t{byte()} << (8 * i);
  return value;
}

}  // namespace lockstep::checkpoint
