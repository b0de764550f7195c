// Which rank failed first, when others exit before it does; and which ended too early.
//
// A rank that throws tells the others at once. They fail because of that and may exit while the first rank still
// unwinds its stack. So the rank first claims the failure in the launcher's store, and the launcher then names that
// rank.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/job/worker_environment.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// For a worker: `rank` is about to fail, and no other rank has caused that. A newcomer claims it as the rank that it
// replaces. The first claim of an attempt counts. Does
// nothing if LOCKSTEP_STORE is not set (`lockstep run` or spawn set it). Blocks for at most a second. After an error
// the launcher names the worker that exited first.
Status claim_first_failure(int rank, const Environment& environment = Environment::of_process());

// For the launcher: the rank that claimed; nullopt: none did. `store` is "host:port". Each of its requests blocks for
// at most a second.
Result<std::optional<int>> first_failure(const std::string& store, const std::string& job_key);

// For the launcher: nobody has claimed the failure if `rank` has. Blocks as above.
Status forget_first_failure(int rank, const std::string& store, const std::string& job_key);

inline constexpr std::chrono::seconds kLookAtEarlyEnds{2};

// For the launcher, every kLookAtEarlyEnds: `ranks` have ended. Where the others of the job wait in init_process_group
// for one that has not joined, they get an error that says so: "rank 1 could not take part: it " and `how`. Ranks that
// need no other look are taken out. Blocks as above.
Status tell_of_early_ends(const JobSpec& job, std::vector<int>& ranks,
                          const std::string& how = "has ended with exit code 0 before it joined");

}  // namespace lockstep::launch
