// The running jobs of this user. Nothing registers them: a job is what the kernel shows of its processes, so a job that
// was killed leaves nothing to be cleaned up.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "site/processes.h"

namespace lockstep::site {

struct JobWorker {
  Process process;
  int rank = 0;
  int local_rank = 0;
  bool is_newcomer = false;  // in the place of a worker that has failed
};

struct RunningJob {
  Process launcher;                  // `lockstep run`, or the program that called spawn
  std::vector<std::string> command;  // its command line
  std::string id;                    // --rdzv-id, else random; empty while it starts
  int world_size = 0;                // over all machines; 0: unknown, as no worker runs here
  int restarts = 0;
  int max_restarts = 0;
  std::vector<JobWorker> workers;  // on this machine, by rank
  std::vector<Process> standby;    // loaded for a restart, on this machine
  // With --hosts: what it has started for each node, an ssh or a launcher. Workers of such a launcher are those above.
  std::vector<Process> nodes;
};

// By the time they were started.
std::vector<RunningJob> running_jobs();

// The job with this id, this beginning of an id, or this pid of its launcher. kNotFound; kInvalidArgument when several
// jobs fit: it lists them.
Result<RunningJob> find_job(const std::vector<RunningJob>& jobs, std::string_view name);

// Asks the launcher to end its job (SIGTERM) and waits until it is gone; `at_once` kills the workers. A launcher that
// is stopped goes on. kTimeout: it has not ended. The signal reaches this very process or none.
Status stop_job(const RunningJob& job, bool at_once, Deadline deadline);

}  // namespace lockstep::site
