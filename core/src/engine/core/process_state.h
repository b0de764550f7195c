// What the system says of a process that others wait for. It tells a frozen process from one that computes.
#pragma once

#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::comm {

// "stopped by a signal", "dead" and the like; empty if the process runs, sleeps, or cannot be seen. `process` is a
// pidfd. This reads files of /proc: use it for error texts, not inside waits.
std::string condition_of(const Fd& process);

}  // namespace lockstep::comm
