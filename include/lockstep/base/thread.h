// Starting threads. The system may refuse one (ulimit -u, a container's pids limit): that is an error like any other.
#pragma once

#include <functional>
#include <string_view>
#include <thread>

#include "lockstep/base/status.h"

namespace lockstep {

// Runs `work` in a thread of its own. kUnavailable when there can be none: the message says what it was `wanted_for`,
// and what to look at.
Result<std::jthread> start_thread(std::string_view wanted_for, std::function<void()> work);

}  // namespace lockstep
