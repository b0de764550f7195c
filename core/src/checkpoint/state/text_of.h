// A number to text, from which number_from_text() reads the same bits.
#pragma once

#include <fmt/format.h>

#include <string>

namespace lockstep::checkpoint {

template <typename T>
std::string text_of(T value) {
  return fmt::format("{}", value);  // for floating point: enough digits to read the same value again
}

}  // namespace lockstep::checkpoint
