// How long a rank waits for others before it warns.
#pragma once

#include <chrono>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// What LOCKSTEP_PATIENCE says, or Communicator::kDefaultPatience if it is not set. This is the patience of a process
// until Communicator::set_patience() is called. kInvalidArgument: its value is none.
Result<std::chrono::milliseconds> patience_in_environment();

}  // namespace lockstep::comm
