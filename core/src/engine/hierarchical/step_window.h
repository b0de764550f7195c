// StepWindow: how many steps a rank has under way at once. Two large steps keep the network busy. More of them would
// only push one another out of the caches.
#pragma once

#include <cstddef>

#include "engine/local/control.h"

namespace lockstep::comm {

class StepWindow {
 public:
  static constexpr std::size_t kSteps = 8;
  // A third step begins only while those under way exchange less than this together.
  static constexpr std::size_t kBytes = std::size_t{512} << 10;
  // A local group's ring of slots is never full: a rank that begins step s has seen the end of step s - kSteps. So all
  // others have begun that step, and have seen the end of step s - 2 * kSteps.
  static_assert(2 * kSteps <= kRing);

  bool has_room() const { return steps_ < kSteps && (steps_ < 2 || bytes_ < kBytes); }
  // `bytes`: what the step exchanges (Step::bytes).
  void enter(std::size_t bytes) {
    ++steps_;
    bytes_ += bytes;
  }
  void leave(std::size_t bytes) {
    --steps_;
    bytes_ -= bytes;
  }

 private:
  std::size_t steps_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::comm
