// The job's key, as a launcher of several nodes finds it.
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::launch {

// The key in the file `path` (--job-key-file; "-": the first line of standard input); without a path that in
// LOCKSTEP_JOB_KEY, or else the user's own. kPermission: others may read the file. kInvalidArgument: workers could not
// get the key in their environment. kAborted: `interrupt_fd` became readable meanwhile.
Result<std::string> find_job_key(const std::string& path, int interrupt_fd);

}  // namespace lockstep::launch
