// Which rank failed first, when others exit before it does.
//
// A rank that throws tells the others at once. They fail because of that and may exit while the first rank still
// unwinds its stack. So the rank first claims the failure in the launcher's store, and the launcher then names that
// rank.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// For a worker: `rank` is about to fail, and no other rank has caused that. The first claim of an attempt counts. Does
// nothing if LOCKSTEP_STORE is not set (`lockstep run` or spawn set it). Blocks for at most a second. After an error
// the launcher names the worker that exited first.
Status claim_first_failure(int rank, const Environment& environment = Environment::of_process());

// For the launcher: the rank that claimed; nullopt: none did. `store` is "host:port". Each of its requests blocks for
// at most a second.
Result<std::optional<int>> first_failure(const std::string& store, const std::string& job_key);

}  // namespace lockstep::launch
