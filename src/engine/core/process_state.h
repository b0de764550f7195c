// What the system says of a process that does not come: a frozen one is told from one that computes.
#pragma once

#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::comm {

// "stopped by a signal", "dead" and the like; empty where it runs, sleeps, or cannot be seen. `process`: its pidfd.
// Reads files of /proc: for messages, not for waits.
std::string condition_of(const Fd& process);

}  // namespace lockstep::comm
