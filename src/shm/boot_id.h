// Which running kernel this is.
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// Equal for all processes of a machine until it starts again; empty where the system has no such number. Read once: an
// error, for want of descriptors, must not make a process look as if it ran elsewhere.
Result<std::string> boot_id();

}  // namespace lockstep::comm
