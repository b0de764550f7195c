#include "launch/job/agent.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "launch/job/failure_report.h"
#include "launch/job/job_services.h"
#include "launch/job/rank_watch.h"
#include "launch/job/worker_environment.h"
#include "launch/job/worker_group.h"
#include "launch/nodes/node_agent.h"
#include "launch/output/console.h"
#include "launch/output/log_files.h"
#include "launch/process/cores.h"
#include "launch/process/signal_watch.h"
#include "launch/standby/standby.h"
#include "launch/supervisor/descendants.h"
#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

// --min-workers and --newcomers.
Status check_survival(const JobOptions& options) {
  const auto wrong = [](std::string message) { return Status(ErrorCode::kInvalidArgument, std::move(message)); };
  if (options.max_newcomers > 0 && options.min_workers == 0) {
    return wrong(fmt::format("--newcomers {} needs --min-workers, the fewest workers with which the job goes on",
                             options.max_newcomers));
  }
  if (options.min_workers > 0 && options.nodes.max_nodes > 1) {
    return wrong(
        "--min-workers: expected a job of one node. In a job of several nodes all launchers start the workers again "
        "together: use --max-restarts, and --nnodes MIN:MAX where nodes may be lost");
  }
  if (options.min_workers <= options.workers) return {};
  return wrong(fmt::format("--min-workers {}: expected at most the number of workers, which is {}", options.min_workers,
                           options.workers));
}

Status check(const JobOptions& options) {
  if (options.command.empty()) return Status(ErrorCode::kInvalidArgument, "no program to run was given");
  if (options.workers < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{} workers asked for, expected 1 or more", options.workers));
  }
  return check_survival(options);
}

int omp_threads(const std::vector<std::string>& environment, int workers, int given_cores) {
  if (find_variable(environment, "OMP_NUM_THREADS") != nullptr) return 0;
  const int cores = given_cores > 0 ? given_cores : usable_cores();
  const int threads = threads_per_worker(cores, workers);
  log::info(fmt::format("OMP_NUM_THREADS={} for each of {} workers ({} cores); set it yourself to change that", threads,
                        workers, cores));
  return threads;
}

// Names and the key, which stay the same in all attempts.
Result<JobSpec> describe_job(const JobOptions& options, const NodeLink* nodes) {
  JobSpec job;
  job.error_files = std::make_shared<ErrorFiles>();
  job.local_world_size = options.workers;
  job.world_size = options.workers;
  job.role = options.role;
  job.max_restarts = options.max_restarts;
  job.max_newcomers = options.max_newcomers;
  job.omp_threads = omp_threads(current_environment(), options.workers, options.cores);
  if (nodes != nullptr) {
    job.job_key = nodes->job_key();
    job.run_id = nodes->run_id();
    return job;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(job.job_key, make_job_key());
  job.run_id = options.run_id;
  if (job.run_id.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string random, make_job_key());
    job.run_id = random.substr(0, 16);
  }
  return job;
}

constexpr std::chrono::seconds kFarewell(5);

// For how long readers and disks may take nothing at the end. A grace time of 0 must not cost lines where they work.
std::chrono::milliseconds output_patience(const JobOptions& options) {
  return std::max<std::chrono::milliseconds>(options.grace, std::chrono::seconds(1));
}

// Names a folder for log files if the caller did not. Returns nullptr if no stream goes to a file. Code kAborted: a
// signal came while the folder did not answer.
Result<std::unique_ptr<LogFiles>> start_logs(JobOptions& options, const JobSpec& job, Consoles& consoles,
                                             SignalWatch& signals) {
  if (!options.tee.any() && !options.redirects.any()) return std::unique_ptr<LogFiles>();
  const bool temporary = options.log_dir.empty();
  const std::string folder = temporary ? temporary_folder() : options.log_dir;
  LOCKSTEP_ASSIGN_OR_RETURN(auto logs, LogFiles::start(folder, output_patience(options)));
  if (temporary) {
    const std::function<Result<std::string>()> make = [folder] { return make_temporary_log_dir(folder); };
    LOCKSTEP_ASSIGN_OR_RETURN(options.log_dir, logs->call(make, signals.fd(), Deadline::never()));
    consoles.err().say("lockstep: log files are in " + log_folder_of(options.log_dir, job.run_id));
  }
  return logs;
}

// Each attempt gets its own services, which end with it.
Result<RunResult> run_attempt(const JobOptions& options, JobSpec job, Consoles& consoles, LogFiles* logs,
                              SignalWatch& signals, Standby& standby, RankWatch& watch) {
  job.master_addr = options.master_addr;
  job.master_port = options.master_port;
  LOCKSTEP_ASSIGN_OR_RETURN(const JobServices services, JobServices::start(job));
  return WorkerGroup(options, job, consoles, logs, signals, standby, watch).run();
}

// If the supervisor is killed, the kernel kills the workers, and the processes that they started become our children.
class Subreaper {
 public:
  Subreaper() {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, before_); }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

  // Gives up on processes that have not died after `limit`.
  void end_all(std::chrono::nanoseconds limit) {
    supervisor::kill_descendants(supervisor::monotonic_ns() + limit.count(), [](pid_t, int) {});
  }

 private:
  int before_ = 0;
};

Result<JobEnd> run_attempts(const JobOptions& options, JobSpec job, Consoles& consoles, LogFiles* logs,
                            SignalWatch& signals, Standby& standby, RankWatch& watch) {
  for (;; ++job.restart_count, ++job.restarts) {
    LOCKSTEP_ASSIGN_OR_RETURN(const RunResult result,
                              run_attempt(options, job, consoles, logs, signals, standby, watch));
    Console& err = consoles.err();
    if (!result.program.ok()) {
      err.say("lockstep: " + result.program.message());
      return JobEnd{exit_code_of(result.program), false, {}, result.program.message()};
    }
    // If the worker wrote to the terminal itself, the cursor may be in the middle of a line.
    if (result.failure) err.say((result.failure->stderr_seen ? "" : "\n") + format_failure(*result.failure));
    if (!result.leftovers.ok()) err.say("lockstep: " + result.leftovers.message());
    if (result.signal != 0) return JobEnd{.code = code_after_signal(result), .signalled = true};
    if (!result.failure) return JobEnd{};
    // Leftover processes may hold a port or a device that the next attempt needs.
    if (!result.leftovers.ok() || job.restart_count >= options.max_restarts) {
      return JobEnd{exit_code_of(result.failure->exit), false, result.failure};
    }
    const std::string who = options.workers == 1 ? "the worker" : fmt::format("all {} workers", options.workers);
    err.say(fmt::format("lockstep: starting {} again (restart {} of {})", who, job.restart_count + 1,
                        options.max_restarts));
  }
}

// nullptr: the job has one node.
Result<std::unique_ptr<NodeLink>> meet(const JobOptions& options, SignalWatch& signals) {
  if (options.nodes.max_nodes == 1) return std::unique_ptr<NodeLink>();
  LOCKSTEP_ASSIGN_OR_RETURN(NodeInfo info, describe_node(options));
  MeetingOptions meeting = options.nodes.meeting;
  meeting.run_id = options.run_id;
  return NodeLink::join(meeting, std::move(info), signals.fd());
}

}  // namespace

Result<int> run_job(const JobOptions& given) {
  LOCKSTEP_RETURN_IF_ERROR(check(given));
  JobOptions options = given;
  // Must come first: threads inherit the signal mask.
  SignalWatch signals;
  // Meets the other nodes before anything else is made: it may take minutes.
  const auto meeting = meet(options, signals);
  if (meeting.status().code() == ErrorCode::kAborted) return 128 + signals.take();
  LOCKSTEP_RETURN_IF_ERROR(meeting.status());
  NodeLink* const nodes = meeting.value().get();
  LOCKSTEP_ASSIGN_OR_RETURN(const JobSpec job, describe_job(options, nodes));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto consoles, Consoles::open());
  LOCKSTEP_ASSIGN_OR_RETURN(const auto watch, RankWatch::start(options, consoles->err()));
  const auto logs = start_logs(options, job, *consoles, signals);
  LogFiles* const files = logs.ok() ? logs.value().get() : nullptr;
  Subreaper subreaper;
  Standby standby(options);
  Result<JobEnd> end = logs.status();
  if (logs.ok() && nodes != nullptr)
    end = NodeAgent(options, job, *nodes, *consoles, files, signals, standby, *watch).run();
  if (logs.ok() && nodes == nullptr) end = run_attempts(options, job, *consoles, files, signals, standby, *watch);
  const Status waiting = standby.end();
  if (!waiting.ok()) consoles->err().say("lockstep: " + waiting.message());
  if (logs.status().code() == ErrorCode::kAborted) {
    consoles->err().say("lockstep: " + logs.status().message());
    end = JobEnd{.code = 128 + signals.take(), .signalled = true};
  }
  if (!end.ok()) subreaper.end_all(options.end_timeout);
  // A reader that has stopped reading must not keep us for long, in particular after a signal; nor must a disk. A
  // worker's exit code may be above 128 too: that is no reason to cut off its output.
  const bool signalled = end.ok() && end.value().signalled;
  const std::chrono::milliseconds patience = output_patience(options);
  const auto deadline = [&] { return signalled ? Deadline::after(patience) : Deadline::never(); };
  if (end.ok()) write_error_report(options, job.run_id, end.value(), files, signals);
  if (files != nullptr) files->finish(signals.fd(), deadline());
  consoles->finish(signals, deadline(), patience);
  // The others may still be ending their workers.
  if (nodes != nullptr) nodes->leave(signals.fd(), Deadline::after(options.grace + kFarewell));
  if (!end.ok()) return end.status();
  return end.value().code;
}

}  // namespace lockstep::launch
