// Positions along a row of pixels in 16.16 fixed point.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "image/affine.h"

namespace lockstep::data {

// 64 bits, so that a position far outside of a picture does not wrap to one inside.
inline std::int64_t fixed(double value) {
  constexpr double kMost = 1e15;
  if (std::isnan(value)) return -static_cast<std::int64_t>(kMost);  // infinity minus infinity: outside
  return static_cast<std::int64_t>(std::floor(std::clamp(value * 65536.0 + 0.5, -kMost, kMost)));
}

// The positions begin, begin + 1, ..., end - 1.
struct Interval {
  std::int64_t begin;
  std::int64_t end;
};

inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

// Keeps those i of the interval for which low <= start + i * step < high.
inline void narrow(Interval& interval, std::int64_t start, std::int64_t step, std::int64_t low, std::int64_t high) {
  if (step == 0) {
    if (start < low || start >= high) interval.end = interval.begin;
    return;
  }
  // The first i that is inside, and the first one after it that is outside. A rising position enters at `low`, a
  // falling one at `high`.
  const std::int64_t enter = step > 0 ? -floor_div(start - low, step) : floor_div(start - high, -step) + 1;
  const std::int64_t leave = step > 0 ? -floor_div(start - high, step) : floor_div(start - low, -step) + 1;
  interval.begin = std::clamp(enter, interval.begin, interval.end);
  interval.end = std::clamp(leave, interval.begin, interval.end);
}

inline void fill_pixels(std::uint8_t* to, int count, Color color) {
  for (int i = 0; i < count; ++i, to += Image::kBytesPerPixel) {
    std::memcpy(to, color.data(), 3);
    to[3] = 255;
  }
}

}  // namespace lockstep::data
