#pragma once

#include <chrono>
#include <thread>

#include "engine/core/group.h"
#include "engine/core/group_registry.h"

namespace lockstep::comm {

// A rank that starts operations faster than the others would hold the memory of ever more of them. So it pauses in
// start() until `done` returns true, and not for long: the others may wait for what this rank starts next, in another
// group.
template <typename Done>
void let_others_catch_up(const Group& group, Done done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  while (!done() && std::chrono::steady_clock::now() < end) {
    GroupRegistry::of_process().progress_others(group);
    std::this_thread::yield();
  }
}

}  // namespace lockstep::comm
