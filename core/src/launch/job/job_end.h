// How a job ended, for its launcher.
#pragma once

#include <optional>
#include <string>

#include "launch/job/agent.h"
#include "launch/job/failure_report.h"
#include "launch/output/log_files.h"
#include "launch/process/signal_watch.h"

namespace lockstep::launch {

struct JobEnd {
  int code = 0;
  bool signalled = false;               // the launcher itself, which must not stay for long then
  std::optional<Failure> failure = {};  // the first failure of a worker, after which nothing was started again
  std::string reason = {};              // why the job ended, if no worker failed
};

// Writes the first failure in torchelastic's format: to TORCHELASTIC_ERROR_FILE, where another launcher has set that
// for this one, and with --log-dir to LOG_DIR/RUN_ID/error.json. After success it removes the latter file of an earlier
// job. Gives up on a disk that does not answer, as LogFiles does. Errors are warnings.
void write_error_report(const JobOptions& options, const std::string& run_id, const JobEnd& end, LogFiles* logs,
                        SignalWatch& signals);

}  // namespace lockstep::launch
