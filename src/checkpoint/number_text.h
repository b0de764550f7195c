// Numbers to text and back, with the same bits.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

template <typename T>
std::string text_of(T value) {
  return fmt::format("{}", value);  // for floating point: enough digits to read the same value again
}

template <typename T>
std::optional<T> number_from_text(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace lockstep::checkpoint
