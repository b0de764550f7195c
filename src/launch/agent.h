// The agent of one node: runs a worker group, relays its output, and ends it as a whole.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launch/stream_choice.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

struct JobOptions {
  std::vector<std::string> command;  // the program, searched for in PATH, and its arguments; the same for every worker
  int workers = 1;

  std::string master_addr = "127.0.0.1";
  int master_port = 0;   // 0: the kernel chooses one that is free
  std::string run_id{};  // TORCHELASTIC_RUN_ID and the name of the log folder; empty: drawn at random
  std::string role = "default";

  // How often the group is started again after a failure. Each start has a new store, port and log folder.
  int max_restarts = 0;

  // After a failure or a signal, the time between SIGTERM (or that signal) and SIGKILL.
  std::chrono::milliseconds grace{5000};
  // After SIGKILL, the time until processes that have not died (they wait for a disk or a device) are named and left.
  std::chrono::milliseconds end_timeout{30'000};

  // Each worker gets its share of the cores. Never done when there are more workers than cores.
  bool pin_cores = true;

  // Streams that go to files log_dir/run_id/attempt_N/RANK/{stdout,stderr}.log, instead of (redirects) or besides (tee)
  // the launcher's own output. Empty log_dir with such streams: a new folder in $TMPDIR, named on stderr.
  std::string log_dir{};
  StreamChoice redirects{};
  StreamChoice tee{};
};

// Runs the job to its end; blocks. Answers the launcher's exit code: 0, or that of the worker that failed first (128 +
// number for a signal), or 128 + number of the signal that this process was told to end with. Failures of workers are
// reported on stderr; an error Status means that the job could not be run.
//
// Meant to be what a process does: it takes SIGTERM, SIGINT and SIGHUP for itself while it runs, ignores SIGPIPE, reads
// and writes the standard streams, and ends every child of this process when the job could not be run to its end.
// Whatever the workers started is gone when it returns and when this process dies, but for what cannot be ended, which
// is named. Nobody who stops reading the output keeps it: once the job is over, a reader that takes nothing for the
// time of `grace` is left.
Result<int> run_job(const JobOptions& options);

}  // namespace lockstep::launch
