// Numbers to text and back, with the same bits.
#pragma once

#include <fmt/format.h>

#include <string>

#include "base/number_text.h"

namespace lockstep::checkpoint {

template <typename T>
std::string text_of(T value) {
  return fmt::format("{}", value);  // for floating point: enough digits to read the same value again
}

}  // namespace lockstep::checkpoint
