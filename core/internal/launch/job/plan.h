// What a launcher would do, for --dry-run.
#pragma once

#include <string>

#include "launch/job/agent.h"

namespace lockstep::launch {

// Several lines. Starts nothing, meets nobody and writes no file.
std::string describe_plan(const JobOptions& options);

}  // namespace lockstep::launch
