// The machine that this process runs on: its name, for people, and its running kernel, for comparisons.
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep {

// As the system gives it; "(unknown)" when it gives none.
std::string host_name();

// Equal for all processes of a machine until it boots again; empty where the system has no such number. An error, for
// lack of descriptors, is never remembered: it must not make a process look as if it ran on another machine.
Result<std::string> boot_id();

}  // namespace lockstep
