// Starting threads. The system may refuse one (ulimit -u, a container's pids limit), which is an error and no crash.
#pragma once

#include <functional>
#include <string_view>
#include <thread>

#include "lockstep/base/status.h"

namespace lockstep {

// Runs `work` in a new thread. kUnavailable when the system refuses one: the message says what it was `wanted_for`, and
// which limits to check.
Result<std::jthread> start_thread(std::string_view wanted_for, std::function<void()> work);

}  // namespace lockstep
