#include "launch/agent.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <utility>

#include "launch/cores.h"
#include "launch/job_services.h"
#include "launch/log_folder.h"
#include "launch/relay.h"
#include "launch/signal_watch.h"
#include "launch/supervisor/descendants.h"
#include "launch/worker_group.h"
#include "lockstep/base/log.h"

namespace lockstep::launch {
namespace {

Status check(const JobOptions& options) {
  if (options.command.empty()) return Status(ErrorCode::kInvalidArgument, "no program to run was given");
  if (options.workers < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{} workers asked for, expected 1 or more", options.workers));
  }
  return {};
}

int omp_threads(const std::vector<std::string>& environment, int workers) {
  if (find_variable(environment, "OMP_NUM_THREADS") != nullptr) return 0;
  const auto cores = static_cast<int>(allowed_cores().size());
  const int threads = threads_per_worker(cores, workers);
  log::info(fmt::format("OMP_NUM_THREADS={} for each of {} workers ({} cores); set it yourself to change that", threads,
                        workers, cores));
  return threads;
}

// Names, the key and the folder that stay the same over restarts.
Result<JobFacts> describe_job(JobOptions& options) {
  JobFacts job;
  job.local_world_size = options.workers;
  job.world_size = options.workers;
  job.role = options.role;
  job.max_restarts = options.max_restarts;
  job.omp_threads = omp_threads(current_environment(), options.workers);
  LOCKSTEP_ASSIGN_OR_RETURN(job.job_key, make_job_key());
  job.run_id = options.run_id;
  if (job.run_id.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string random, make_job_key());
    job.run_id = random.substr(0, 16);
  }
  if (options.log_dir.empty() && (options.tee.any() || options.redirects.any())) {
    LOCKSTEP_ASSIGN_OR_RETURN(options.log_dir, make_temporary_log_dir());
  }
  return job;
}

// The next generation gets services of its own, which end with it.
Result<GroupEnd> run_generation(const JobOptions& options, JobFacts job, Consoles& consoles, SignalWatch& signals) {
  job.master_addr = options.master_addr;
  job.master_port = options.master_port;
  LOCKSTEP_ASSIGN_OR_RETURN(const JobServices services, JobServices::start(job));
  return WorkerGroup(options, job, consoles, signals).run();
}

// Should the supervisor itself be killed, the kernel ends the workers, and what they had started is left to us.
class Subreaper {
 public:
  Subreaper() {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, before_); }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

  // What has not died by then is left; its end is nobody's to wait for.
  void end_all(std::chrono::nanoseconds limit) {
    supervisor::kill_descendants(supervisor::monotonic_ns() + limit.count(), [](pid_t, int) {});
  }

 private:
  int before_ = 0;
};

Result<int> run_generations(const JobOptions& options, JobFacts job, Consoles& consoles, SignalWatch& signals) {
  for (;; ++job.restart_count) {
    LOCKSTEP_ASSIGN_OR_RETURN(const GroupEnd end, run_generation(options, job, consoles, signals));
    Console& err = consoles.err();
    // A terminal that the worker wrote to itself may stand in the middle of a line.
    if (end.failure) err.say((end.failure->stderr_seen ? "" : "\n") + format_failure(*end.failure));
    if (!end.left_behind.ok()) err.say("lockstep: " + end.left_behind.message());
    if (end.signal != 0) return 128 + end.signal;
    if (!end.failure) return 0;
    // What is left may hold what the next generation needs.
    if (!end.left_behind.ok() || job.restart_count >= options.max_restarts) return exit_code_of(end.failure->exit);
    err.say(fmt::format("lockstep: starting all {} workers again (restart {} of {})", options.workers,
                        job.restart_count + 1, options.max_restarts));
  }
}

}  // namespace

Result<int> run_job(const JobOptions& given) {
  LOCKSTEP_RETURN_IF_ERROR(check(given));
  JobOptions options = given;
  // First of all, so that every thread made later leaves these signals to us.
  SignalWatch signals;
  const bool made_log_dir = options.log_dir.empty();
  LOCKSTEP_ASSIGN_OR_RETURN(const JobFacts job, describe_job(options));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto consoles, Consoles::open());
  if (made_log_dir && !options.log_dir.empty()) {
    consoles->err().say(fmt::format("lockstep: log files are in {}/{}", options.log_dir, job.run_id));
  }
  Subreaper subreaper;
  Result<int> code = run_generations(options, job, *consoles, signals);
  if (!code.ok()) subreaper.end_all(options.end_timeout);
  // A reader that has stopped reading must not keep us, least of all once we were told to end.
  const bool told_to_end = code.ok() && code.value() > 128;
  consoles->finish(signals, told_to_end ? Deadline::after(options.grace) : Deadline::never(), options.grace);
  return code;
}

}  // namespace lockstep::launch
