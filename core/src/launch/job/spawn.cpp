#include "lockstep/launch/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "base/poll.h"
#include "base/standard_descriptors.h"
#include "launch/job/first_failure.h"
#include "launch/job/job_services.h"
#include "launch/job/spawn_child.h"
#include "launch/process/process_tree.h"
#include "launch/process/program.h"

namespace lockstep::launch {
namespace {

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

Result<std::vector<FdPair>> make_pipes(int count) {
  std::vector<FdPair> pipes(static_cast<std::size_t>(count));
  for (FdPair& pipe : pipes) {
    LOCKSTEP_ASSIGN_OR_RETURN(pipe, make_pipe(fmt::format("spawn: cannot make the pipes for {} processes", count)));
    // A rank's child may still hold the pipe open, so never wait for its end. The rank's report is there when it exits.
    fcntl(pipe.reader.get(), F_SETFL, O_NONBLOCK);
  }
  return pipes;
}

unsigned long long inode_of(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

Result<std::vector<Command>> make_commands(const SpawnOptions& options, int call, const JobSpec& job,
                                           const std::vector<FdPair>& pipes, int null_fd) {
  Command common;
  LOCKSTEP_ASSIGN_OR_RETURN(common.executable, own_program());
  common.arguments = options.argv.empty() ? own_arguments() : options.argv;
  const std::vector<std::string> inherited = environment_for_workers();
  std::vector<Command> commands;
  for (int rank = 0; rank < options.nprocs; ++rank) {
    const int writer = pipes[static_cast<std::size_t>(rank)].writer.get();
    Variables variables = worker_variables(job, rank);
    variables.emplace_back(kSpawnVariable, fmt::format("{}:{}:{}", call, writer, inode_of(writer)));
    Command& command = commands.emplace_back(common);
    command.report_fd = writer;
    if (rank > 0) command.stdin_fd = null_fd;
    command.environment = merge_environment(merge_environment(inherited, variables), options.environment);
  }
  return commands;
}

Status thrown(int rank, std::size_t count, const std::string& error) {
  return Status(ErrorCode::kPeerFailed, fmt::format("spawn: rank {} of {} threw: {}", rank, count, error));
}

// The failure of this process, from its report and its exit.
Status describe_failure(const Exit& exit, const SpawnReport& report, std::size_t count, int call) {
  if (report.error) return thrown(exit.index, count, *report.error);
  if (!report.started) {
    return Status(ErrorCode::kPeerFailed,
                  fmt::format("spawn: the process of rank {} of {} ended with {} before it reached call {} of spawn: "
                              "main() must reach the same call in each process",
                              exit.index, count, describe_exit(exit), call));
  }
  return Status(ErrorCode::kPeerFailed,
                fmt::format("spawn: rank {} of {} (process {}) ended with {} after {:.2f} s", exit.index, count,
                            exit.pid, describe_exit(exit), std::chrono::duration<double>(exit.run_time).count()));
}

// The failure to report after the first failed exit: the earliest exception, or this exit if it came before them.
Status earliest_failure(const Exit& exit, const std::vector<FdPair>& pipes, int call) {
  int rank = exit.index;
  std::int64_t when = exit.when.time_since_epoch().count();
  std::optional<std::string> error;
  SpawnReport own;
  for (std::size_t i = 0; i < pipes.size(); ++i) {
    SpawnReport report = read_spawn_report(pipes[i].reader.get());
    if (report.error && report.error_ns <= when) {
      rank = static_cast<int>(i);
      when = report.error_ns;
      error = report.error;
    }
    if (static_cast<int>(i) == exit.index) own = std::move(report);
  }
  return error ? thrown(rank, pipes.size(), *error) : describe_failure(exit, own, pipes.size(), call);
}

// False: the deadline passed first.
bool wait_readable(int fd, Deadline deadline) {
  const auto ready = poll_until(fd, POLLIN, deadline);
  return ready.ok() && ready.value();
}

class Join {
 public:
  Join(ProcessTree& tree, const JobSpec& job, const std::vector<FdPair>& pipes, int call)
      : tree_(tree), job_(job), pipes_(pipes), call_(call), exited_(pipes.size(), false) {}

  Status run(const SpawnOptions& options) {
    const Deadline deadline = Deadline::after(options.timeout);
    grace_ = options.grace;
    Status failure;
    while (failure.ok() && tree_.running() > 0) {
      if (wait_readable(tree_.fd(), earlier(deadline, look_at_))) {
        failure = take_exit();
      } else if (deadline.expired()) {
        failure = timed_out(options.timeout);
      } else {
        static_cast<void>(tell_of_early_ends(job_, ended_));  // the store may be busy: next time
        look_at_ = ended_.empty() ? Deadline::never() : Deadline::after(kLookAtEarlyEnds);
      }
    }
    if (!failure.ok()) stop_others(options.grace);
    const Status ended = tree_.end();
    if (failure.ok() || ended.ok()) return failure.ok() ? ended : failure;
    return {failure.code(), failure.message() + "; " + ended.message()};
  }

 private:
  Status take_exit() {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<Exit> exit, next_exit());
    if (!exit) return {};
    if (exit->failed()) return root_cause_of(*exit);
    const SpawnReport report = report_of(exit->index);
    ended_.push_back(exit->index);
    if (look_at_.is_never()) look_at_ = Deadline::after(kLookAtEarlyEnds);
    // A call of exit(0) inside fn is not a failure.
    return report.started ? Status() : describe_failure(*exit, report, pipes_.size(), call_);
  }

  Result<std::optional<Exit>> next_exit() {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<Exit> exit, tree_.next_exit());
    if (exit) exited_[static_cast<std::size_t>(exit->index)] = true;
    return exit;
  }

  SpawnReport report_of(int rank) const {
    return read_spawn_report(pipes_[static_cast<std::size_t>(rank)].reader.get());
  }

  // The failure of the rank that failed first. It may exit after a rank that failed because of it.
  Status root_cause_of(const Exit& exit) {
    const Result<std::optional<int>> claimed = first_failure(job_.store, job_.job_key);
    const int rank = claimed.ok() ? claimed.value().value_or(-1) : -1;
    if (rank >= 0 && rank < job_.world_size) {
      const std::optional<Exit> began = rank == exit.index ? exit : await_exit(rank, Deadline::after(grace_));
      if (began && began->failed()) return describe_failure(*began, report_of(rank), pipes_.size(), call_);
    }
    return earliest_failure(exit, pipes_, call_);
  }

  std::optional<Exit> await_exit(int rank, Deadline deadline) {
    while (!exited_[static_cast<std::size_t>(rank)] && wait_readable(tree_.fd(), deadline)) {
      const Result<std::optional<Exit>> exit = next_exit();
      if (!exit.ok()) break;
      if (exit.value() && exit.value()->index == rank) return exit.value();
    }
    return std::nullopt;
  }

  Status timed_out(std::chrono::milliseconds timeout) const {
    std::vector<std::size_t> running;
    for (std::size_t rank = 0; rank < exited_.size(); ++rank) {
      if (!exited_[rank]) running.push_back(rank);
    }
    return Status(ErrorCode::kTimeout, fmt::format("spawn: after {:.3g} s rank {} of {} had not finished; stopped",
                                                   std::chrono::duration<double>(timeout).count(),
                                                   fmt::join(running, ", "), exited_.size()));
  }

  void stop_others(std::chrono::milliseconds grace) {
    if (!tree_.signal(SIGTERM).ok()) return;
    const Deadline deadline = Deadline::after(grace);
    while (tree_.running() > 0 && wait_readable(tree_.fd(), deadline)) {
      if (!tree_.next_exit().ok()) return;
    }
  }

  ProcessTree& tree_;
  const JobSpec& job_;
  const std::vector<FdPair>& pipes_;
  int call_;
  std::chrono::milliseconds grace_{0};
  std::vector<bool> exited_;
  std::vector<int> ended_;  // with 0, until they are known to have joined the others
  Deadline look_at_ = Deadline::never();
};

Status run_parent(const SpawnOptions& options, int call) {
  // Before anything of ours is opened: the ranks inherit these numbers.
  fill_standard_descriptors();
  JobSpec job;
  job.local_world_size = options.nprocs;
  job.world_size = options.nprocs;
  LOCKSTEP_ASSIGN_OR_RETURN(job.job_key, make_job_key());
  LOCKSTEP_ASSIGN_OR_RETURN(const JobServices services, JobServices::start(job));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<FdPair> pipes, make_pipes(options.nprocs));
  const Fd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_fd.valid()) return Status::from_errno("spawn: cannot open /dev/null", errno);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Command> commands,
                            make_commands(options, call, job, pipes, null_fd.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(ProcessTree tree, ProcessTree::start(commands));
  for (FdPair& pipe : pipes) pipe.writer.reset();
  return Join(tree, job, pipes, call).run(options);
}

}  // namespace

Status spawn(const std::function<void(int rank)>& fn, const SpawnOptions& options) {
  static std::atomic<int> calls{0};
  const int call = options.call_number > 0 ? options.call_number : ++calls;
  if (SpawnChild* child = spawn_child(); child != nullptr) {
    if (child->running) {
      return Status(ErrorCode::kUnsupported,
                    "spawn was called inside the function of another spawn; a rank cannot spawn ranks of its own. Ask "
                    "the outer spawn for all processes and split the group");
    }
    if (call < child->call) return {};
    run_spawn_child(*child, fn);
  }
  if (options.nprocs < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("spawn: nprocs is {}, expected 1 or more processes", options.nprocs));
  }
  return run_parent(options, call);
}

}  // namespace lockstep::launch
