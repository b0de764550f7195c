// Where a failure began, when the news of it is faster than the end of the process that it began in.
//
// A rank that leaves by an exception tells the others at once; they fail because of it and may be gone before it has
// unwound. So before it tells them it claims the failure with the launcher, who then names that rank, not one of them.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// For a worker: `rank` is about to fail, for a reason of its own. The first claim of a generation counts. Does nothing
// where no `lockstep run` started this process (LOCKSTEP_STORE is not set). Blocks for at most a second; after an error
// the launcher names the process that left first.
Status claim_first_failure(int rank, const Environment& environment = Environment::of_process());

// For the launcher: the rank that claimed, none when nobody did. `store` is "host:port". Blocks for at most a second.
Result<std::optional<int>> first_failure(const std::string& store, const std::string& job_key);

}  // namespace lockstep::launch
