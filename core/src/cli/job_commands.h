// `lockstep ps`, `status` and `stop`: the running jobs of this user.
#pragma once

#include "options/command.h"

namespace lockstep::cli {

// Adds the three commands. Their exit codes: 0; 1 when there is no such job or it does not end; 2 for a name that fits
// several.
void add_job_commands(options::Command& app);

}  // namespace lockstep::cli
