#include "launch/standby/standby.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "base/poll.h"
#include "launch/job/failure_report.h"
#include "launch/standby/hook.h"
#include "launch/supervisor/descendants.h"
#include "lockstep/base/log.h"
#include "store/tcp/unix_socket.h"

namespace lockstep::launch {
namespace {

// After this time the workers are started anew. To start a process takes milliseconds.
constexpr std::chrono::seconds kStartPatience{2};

std::string entry_for(int socket) {
  struct stat info {};
  fstat(socket, &info);
  int oom_score = 0;
  std::ifstream("/proc/self/oom_score_adj") >> oom_score;
  const std::string value = fmt::format("{}:{}:{}", socket, info.st_ino, oom_score);
  return fmt::format("{}={:<{}}", kStandbyVariable, value, kStandbyVariableBytes);
}

bool restart_may_follow(const JobOptions& options, const JobSpec& job) {
  return job.restarts < options.max_restarts || options.nodes.min_nodes < options.nodes.max_nodes;
}

bool same_program(const Command& one, const Command& other) {
  return one.executable == other.executable && one.arguments == other.arguments && one.cpus == other.cpus;
}

// It may have become another program than the one that was started, as `lockstep train` does.
bool runs_replaced_program(pid_t pid) {
  if (!supervisor::proc_is_ours()) return false;
  const std::string running = fmt::format("/proc/{}/exe", pid);
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink(running, error);
  return !error && program_file(running) != program_file(path);
}

// A process may not be able to die now.
void reap(const std::vector<pid_t>& pids, std::chrono::milliseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  for (const pid_t pid : pids) {
    // 0: it was never started.
    while (pid > 0 && waitpid(pid, nullptr, WNOHANG) == 0 && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// Texts for the message: see hook.h.
std::string environment_changes(const Command& waiting, const Command& worker) {
  std::string changes;
  for (const std::string& text : changed_variables(waiting.environment, worker.environment)) {
    if (text == kStandbyVariable) continue;  // the process removes it itself
    changes += text;
    changes += '\0';
  }
  // A message must not be empty. Removing a variable that is not there does no harm.
  return changes.empty() ? std::string(kStandbyVariable) + '\0' : changes;
}

}  // namespace

Standby::~Standby() {
  (void)end();
}

void Standby::prepare(const JobSpec& job, std::span<const Command> workers) {
  due_.reset();
  if (!restart_may_follow(options_, job)) return;
  // The values that the next attempt will have, if a failure leads to it. Libraries may read them when they are loaded.
  const Variables next{{"TORCHELASTIC_RESTART_COUNT", std::to_string(job.restarts + 1)},
                       {"LOCKSTEP_RESTART_COUNT", std::to_string(job.restart_count + 1)}};
  std::vector<Command> commands(workers.begin(), workers.end());
  for (Command& command : commands) command.environment = merge_environment(command.environment, next);
  load_later(job, std::move(commands));
}

void Standby::load_later(const JobSpec& job, std::vector<Command> commands) {
  due_.reset();
  if (!options_.standby_after || commands.empty() || !has_standby_hook(commands.front().executable)) return;
  error_files_ = job.error_files;
  commands_ = std::move(commands);
  due_ = Deadline::after(*options_.standby_after);
}

void Standby::start_if_due() {
  if (!due_ || !due_->expired()) return;
  due_.reset();
  const Status started = start();
  if (started.ok()) return;
  log::info("no processes are on standby for a restart or a replacement: " + started.message());
  (void)end();
}

Status Standby::start() {
  // Its streams come when it goes on.
  const Fd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd.valid()) return Status::from_errno("cannot open /dev/null", errno);
  std::vector<Fd> theirs;
  for (Command& command : commands_) {
    LOCKSTEP_ASSIGN_OR_RETURN(FdPair pair, make_socket_pair("cannot make a socket pair"));
    command.stdin_fd = command.stdout_fd = command.stderr_fd = null_fd.get();
    command.report_fd = pair.writer.get();
    command.low_priority = true;
    std::erase_if(command.environment,
                  [](const std::string& entry) { return entry.starts_with(kStandbyVariable + std::string("=")); });
    command.environment.insert(command.environment.begin(), entry_for(pair.writer.get()));
    sockets_.push_back(std::move(pair.reader));
    theirs.push_back(std::move(pair.writer));
  }
  file_ = program_file(commands_.front().executable);
  LOCKSTEP_ASSIGN_OR_RETURN(ProcessTree tree, ProcessTree::begin(commands_, error_files_->folder()));
  tree_.emplace(std::move(tree));
  return {};
}

// Whether all of them can become `workers`.
Status Standby::check(std::span<const Command> workers, int interrupt_fd) {
  if (workers.size() != commands_.size()) return {ErrorCode::kMismatch, "the number of workers has changed"};
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!same_program(commands_[i], workers[i])) return {ErrorCode::kMismatch, "their command or cores have changed"};
  }
  if (!file_ || program_file(workers.front().executable) != file_) {
    return {ErrorCode::kMismatch, "the program's file has changed"};
  }
  tree_->wake_supervisor();
  LOCKSTEP_RETURN_IF_ERROR(tree_->await_started(commands_, interrupt_fd, Deadline::after(kStartPatience)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<Exit> exit, tree_->next_exit());
  if (exit) return {ErrorCode::kPeerFailed, fmt::format("process {} has ended", exit->pid)};
  for (const pid_t pid : tree_->pids()) {
    if (runs_replaced_program(pid)) return {ErrorCode::kMismatch, "a program's file has changed"};
  }
  return {};
}

// An error needs no answer: a process that gets no message ends when its socket is closed, with an exit code that is a
// failure.
void Standby::send(std::size_t number, const std::string& changes, const Command& worker) {
  // The supervisor may have lowered its priority, and somebody may have stopped it.
  const pid_t pid = tree_->pids()[number];
  setpriority(PRIO_PGRP, static_cast<id_t>(pid), getpriority(PRIO_PROCESS, 0));
  kill(-pid, SIGCONT);
  const std::array<int, 3> fds{worker.stdin_fd, worker.stdout_fd, worker.stderr_fd};
  const Deadline at_once = Deadline::after(std::chrono::nanoseconds(0));
  static_cast<void>(comm::send_message(sockets_[number].get(), std::as_bytes(std::span(changes)), fds, at_once));
}

std::optional<ProcessTree> Standby::release(std::span<const Command> workers, int interrupt_fd) {
  due_.reset();
  if (!tree_) return std::nullopt;
  Status fit = check(workers, interrupt_fd);
  std::vector<std::string> changes;
  for (std::size_t i = 0; fit.ok() && i < workers.size(); ++i) {
    changes.push_back(environment_changes(commands_[i], workers[i]));
    if (changes.back().size() > kMostStandbyBytes) fit = {ErrorCode::kUnsupported, "too many variables have changed"};
  }
  if (!fit.ok()) {
    log::info("the processes on standby are not used: " + fit.message());
    (void)end();
    return std::nullopt;
  }
  for (std::size_t i = 0; i < workers.size(); ++i) send(i, changes[i], workers[i]);
  sockets_.clear();
  tree_->restart_clocks();
  std::optional<ProcessTree> released(std::move(tree_));
  tree_.reset();
  return released;
}

Status Standby::end() {
  due_.reset();
  sockets_.clear();
  if (!tree_) return {};
  Status ended = tree_->end(options_.end_timeout);
  const std::vector<pid_t> pids = tree_->pids();
  tree_.reset();
  if (ended.code() != ErrorCode::kInternal) return ended;
  // The kernel has killed them with their supervisor, which makes them children of the launcher, a subreaper.
  reap(pids, options_.end_timeout);
  return {};
}

void Reserves::prepare(const JobSpec& job, int local_rank, const Command& newcomer) {
  of_workers_.try_emplace(local_rank, options_).first->second.prepare_newcomer(job, newcomer);
}

Deadline Reserves::next_due() const {
  Deadline due = Deadline::never();
  for (const auto& [local_rank, standby] : of_workers_) due = earlier(due, standby.next_due());
  return due;
}

void Reserves::start_if_due() {
  for (auto& [local_rank, standby] : of_workers_) standby.start_if_due();
}

std::optional<ProcessTree> Reserves::release(int local_rank, const Command& newcomer, int interrupt_fd) {
  const auto found = of_workers_.find(local_rank);
  if (found == of_workers_.end()) return std::nullopt;
  return found->second.release({&newcomer, 1}, interrupt_fd);
}

Status Reserves::end() {
  Status first;
  for (auto& [local_rank, standby] : of_workers_) {
    const Status ended = standby.end();
    if (first.ok()) first = ended;
  }
  return first;
}

}  // namespace lockstep::launch
