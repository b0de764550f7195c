// How often a test repeats a step that it repeats only to hit many cases.
#pragma once

#include <algorithm>

namespace lockstep::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowdown = 5;
#else
inline constexpr int kSlowdown = 1;
#endif

// `full`, or a part of it in an instrumented build, where each repetition takes much longer and finds more.
constexpr int repetitions(int full) {
  return std::max(1, full / kSlowdown);
}

}  // namespace lockstep::test
