// The time of an event in the log of a run, and in TensorBoard's files.
#pragma once

#include <chrono>

namespace lockstep::report {

// Seconds since 1970.
inline double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep::report
