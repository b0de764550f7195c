#include "launch/job/worker_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <utility>

#include "base/host.h"
#include "base/poll.h"
#include "launch/job/first_failure.h"
#include "launch/nodes/node_link.h"
#include "launch/process/cores.h"
#include "launch/process/program.h"
#include "lockstep/base/environment.h"

namespace lockstep::launch {
namespace {

// The codes by which ProcessTree::start tells the program's errors from the launcher's own.
bool is_about_the_program(ErrorCode code) {
  return code == ErrorCode::kNotFound || code == ErrorCode::kPermission || code == ErrorCode::kInvalidArgument;
}

}  // namespace

Result<std::vector<Command>> WorkerGroup::make_commands() {
  // A shell's keystrokes are not for a job in the background. The system would stop the launcher if it read them, but
  // not a worker, which is in a session of its own.
  const pid_t foreground = tcgetpgrp(STDIN_FILENO);
  const bool in_background = foreground > 0 && foreground != getpgrp();
  std::vector<Command> commands;
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(Command command, make_command(local_rank));
    if (local_rank == 0 && !in_background) command.stdin_fd = STDIN_FILENO;
    commands.push_back(std::move(command));
  }
  return commands;
}

// Its standard input is /dev/null. `more` wins over all but the variables that the options name.
Result<Command> WorkerGroup::make_command(int local_rank, const Variables& more) {
  const auto number = static_cast<std::size_t>(local_rank);
  Command command;
  command.executable = executable_;
  command.arguments = options_.command;
  command.environment = merge_environment(environment_for_workers(), worker_variables(job_, local_rank));
  if (error_files_.size() <= number) error_files_.resize(number + 1);
  error_files_[number] = job_.error_files->make_file();
  Variables variables = more;
  variables.emplace_back("TORCHELASTIC_ERROR_FILE", error_files_[number]);
  recorders_.add_to(local_rank, variables);
  if (number < options_.worker_variables.size()) {
    const Variables& given = options_.worker_variables[number];
    variables.insert(variables.end(), given.begin(), given.end());
  }
  command.environment = merge_environment(command.environment, variables);
  keep_freed_memory(command.environment);
  use_huge_pages(command.environment);
  const bool is_placed = number < options_.worker_cores.size();
  const std::vector<int> cores = options_.pin_cores && !is_placed ? allowed_cores() : std::vector<int>();
  command.cpus = is_placed ? options_.worker_cores[number] : share_cores(cores, options_.workers)[number];
  command.stdin_fd = null_fd_.get();
  LOCKSTEP_RETURN_IF_ERROR(relay_.connect(options_, job_, local_rank, command));
  return command;
}

Result<RunResult> WorkerGroup::run() {
  const std::string path = Environment::of_process().get("PATH").value_or("/usr/bin:/bin");
  const auto executable = find_executable(options_.command.front(), path);
  if (!executable.ok()) {
    result_.program = executable.status();
    return std::move(result_);
  }
  executable_ = executable.value();
  null_fd_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_fd_.valid()) return Status::from_errno("cannot open /dev/null", errno);
  const auto made = make_commands();
  if (made.status().code() == ErrorCode::kAborted) return ended_by_signal(made.status());
  LOCKSTEP_RETURN_IF_ERROR(made.status());
  const std::vector<Command>& commands = made.value();
  // Signals that came before there were workers are dropped.
  while (signals_.take_for_workers() != 0) {
  }
  if (nodes_ != nullptr) nodes_->take_signals();
  memory_kills_ = memory_kills();
  auto started = start(commands);
  if (started.status().code() == ErrorCode::kAborted) return ended_by_signal(started.status());
  if (is_about_the_program(started.status().code())) {
    result_.program = started.status();
    return std::move(result_);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(ProcessTree tree, std::move(started));
  Workers workers(std::move(tree));
  if (options_.min_workers > 0) roster_.emplace(options_.workers, options_.min_workers, options_.max_newcomers);
  if (options_.max_newcomers > 0) prepare_reserves(commands);
  if (options_.max_newcomers == 0) standby_.prepare(job_, commands);
  exited_.assign(commands.size(), false);
  relay_.started();
  watch_.begin_attempt(job_);
  for (bool going_on = true; going_on && (workers.running() > 0 || awaits_other_node());) {
    LOCKSTEP_ASSIGN_OR_RETURN(going_on, step(workers));
  }
  watch_.end_attempt(recorders_);
  const Status waiting = reserves_.end();
  result_.leftovers = workers.end(options_.end_timeout);
  if (result_.leftovers.code() == ErrorCode::kInternal) return result_.leftovers;
  if (result_.leftovers.ok()) result_.leftovers = waiting;
  relay_.drain();
  if (result_.failure && !tail_is_noted_) note_tail(*result_.failure);
  return std::move(result_);
}

Result<ProcessTree> WorkerGroup::start(const std::vector<Command>& commands) {
  if (auto waiting = standby_.release(commands, signals_.fd())) return std::move(*waiting);
  return ProcessTree::start(commands, signals_.fd(), job_.error_files->folder());
}

RunResult WorkerGroup::ended_by_signal(const Status& why) {
  result_.signal = signals_.take();
  result_.leftovers = why;
  return std::move(result_);
}

Result<bool> WorkerGroup::step(Workers& workers) {
  std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}, {signals_.workers_fd(), POLLIN, 0}};
  workers.add_to(polled);
  relay_.add_to(polled);
  consoles_.add_to(polled);
  watch_.add_to(polled);
  if (nodes_ != nullptr && result_.nodes.ok()) polled.push_back({nodes_->fd(), POLLIN, 0});
  const Deadline nodes_due = nodes_ != nullptr ? nodes_->next_due() : Deadline::never();
  const Deadline reserves_due = earlier(standby_.next_due(), reserves_.next_due());
  const Deadline standby_due = earlier(all_is_well() ? reserves_due : Deadline::never(), end_newcomers_at_);
  const Deadline end = (kill_at_ ? kill_at_ : stop_at_).value_or(Deadline::never());
  const Deadline watch_due = earlier(relay_.next_due(), watch_.next_due());
  const Deadline due = earlier(earlier(nodes_due, standby_due), earlier(watch_due, end));
  const auto waited = poll_until(polled, earlier(due, look_at_));
  LOCKSTEP_RETURN_IF_ERROR(waited.status().with_context("cannot wait for the workers"));
  relay_.serve();
  for (const int local_rank : relay_.writers_in_vain()) {
    if (workers.signal(SIGPIPE, local_rank).ok()) relay_.told(local_rank);
  }
  LOCKSTEP_RETURN_IF_ERROR(take_exits(workers));
  watch_.serve(recorders_, static_cast<int>(workers.running()));
  serve_nodes(workers);
  if (polled[1].revents != 0) pass_on_signal(workers, signals_.take_for_workers());
  if (polled[0].revents != 0 && !take_signal(workers)) return false;
  if (all_is_well()) {
    standby_.start_if_due();
    reserves_.start_if_due();
  }
  if (end_newcomers_at_.expired()) end_newcomers(workers);
  if (look_at_.expired()) look_for_early_ends();
  if (stop_at_ && !kill_at_ && stop_at_->expired()) stop_after_failure(workers);
  if (!kill_at_ || !kill_at_->expired()) return true;
  if (workers.running() > 0 && options_.grace.count() > 0) say_killed();
  return false;
}

void WorkerGroup::look_for_early_ends() {
  if (all_is_well()) {
    // The store may be busy: next time.
    if (!ended_.empty()) static_cast<void>(tell_of_early_ends(job_, ended_));
    if (!died_.empty()) static_cast<void>(tell_of_early_ends(job_, died_, "has failed before it joined"));
  }
  const bool once_more = all_is_well() && !(ended_.empty() && died_.empty());
  look_at_ = once_more ? Deadline::after(kLookAtEarlyEnds) : Deadline::never();
}

void WorkerGroup::say_killed() {
  result_.killed = true;
  std::vector<int> ranks;
  for (std::size_t i = 0; i < exited_.size(); ++i) {
    if (!exited_[i]) ranks.push_back(job_.first_rank + static_cast<int>(i));
  }
  consoles_.err().say(
      fmt::format("lockstep: rank{} {} had not ended {} s (--grace) after being asked to, and {} killed",
                  ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                  std::chrono::duration<double>(options_.grace).count(), ranks.size() == 1 ? "was" : "were"));
}

Status WorkerGroup::take_exits(Workers& workers) {
  while (workers.running() > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<Exit> exit, workers.next_exit());
    if (!exit) return {};
    exited_[static_cast<std::size_t>(exit->index)] = true;
    recorders_.ended(*exit);
    // A worker that exits because we stop it has not failed.
    if (!kill_at_) take_exit(workers, *exit);
  }
  return {};
}

// Another running worker may have claimed the failure as its own. Then that worker gets time to exit with its own
// error, which is the one to report.
void WorkerGroup::take_exit(Workers& workers, const Exit& exit) {
  if (awaited_) {
    if (exit.index != *awaited_) return;
    if (exit.failed()) note_failure(exit);
    return stop_after_failure(workers);
  }
  if (roster_) return survive(workers, exit);
  if (!exit.failed()) {
    ended_.push_back(job_.first_rank + exit.index);
    if (look_at_.is_never()) look_at_ = Deadline::after(kLookAtEarlyEnds);
    return;
  }
  note_failure(exit);
  awaited_ = claimed_by_running();
  if (!awaited_) return stop_after_failure(workers);
  stop_at_ = Deadline::after(options_.grace);
}

std::optional<int> WorkerGroup::claimed() const {
  const Result<std::optional<int>> rank = first_failure(job_.store, job_.job_key);
  if (!rank.ok() || !rank.value()) return {};
  const int local_rank = *rank.value() - job_.first_rank;
  if (local_rank >= 0 && local_rank < options_.workers) return local_rank;
  return nodes_ != nullptr ? std::optional(kElsewhere) : std::nullopt;
}

std::optional<int> WorkerGroup::claimed_by_running() const {
  const std::optional<int> local_rank = claimed();
  const bool has_exited = local_rank && *local_rank != kElsewhere && exited_[static_cast<std::size_t>(*local_rank)];
  return has_exited ? std::nullopt : local_rank;
}

void WorkerGroup::pass_on_signal(Workers& workers, int number) {
  if (number == 0 || kill_at_) return;
  if (number != SIGUSR1 || !recorders_.writes_dumps()) {
    (void)workers.signal(number);
    return;
  }
  recorders_.dump(consoles_.err());
  for (int local_rank = 0; local_rank < options_.workers; ++local_rank) {
    if (exited_[static_cast<std::size_t>(local_rank)]) continue;
    if (takes_signal(workers.pid(local_rank), number)) (void)workers.signal(number, local_rank);
  }
}

bool WorkerGroup::take_signal(Workers& workers) {
  const int number = signals_.take();
  if (number == 0) return true;
  if (result_.signal != 0) return false;
  result_.signal = number;
  // They may have been asked already: a scheduler signals all nodes and all processes of a job, and another node's
  // launcher, or a worker that such a signal has ended, can be faster.
  if (!kill_at_) begin_stop(workers, number);
  tell({.kind = EventKind::kLeave, .number = number});
  return !signals_.at_once();
}

void WorkerGroup::begin_stop(Workers& workers, int signal_number) {
  kill_at_ = Deadline::after(options_.grace);
  // If this fails because the supervisor is dead, the next step reports that.
  (void)workers.signal(signal_number);
}

// The tail of stderr goes with the news, so what the workers have written is read first.
void WorkerGroup::stop_after_failure(Workers& workers) {
  begin_stop(workers, SIGTERM);
  if (nodes_ == nullptr) return;
  note_tail(*result_.failure);
  tell({.kind = EventKind::kFailed, .number = job_.restart_count, .failure = *result_.failure});
}

void WorkerGroup::tell(const Event& event) {
  if (nodes_ == nullptr || !result_.nodes.ok()) return;
  result_.nodes = nodes_->tell(event);
}

void WorkerGroup::serve_nodes(Workers& workers) {
  if (nodes_ == nullptr) return;
  if (result_.nodes.ok()) result_.nodes = nodes_->serve();
  say_notes(*nodes_, consoles_.err(), options_.nodes.reports);
  for (const int number : nodes_->take_signals()) {
    pass_on_signal(workers, number);
  }
  const JobState& state = nodes_->state();
  const bool goes_on =
      state.phase() == Phase::kRunning && state.attempt() == job_.restart_count && nodes_->group_rank() >= 0;
  if ((result_.nodes.ok() && goes_on) || kill_at_) return;
  result_.stopped = true;
  begin_stop(workers, SIGTERM);
}

Failure WorkerGroup::make_failure(const Exit& exit) const {
  Failure failure;
  failure.exit = exit;
  failure.local_rank = exit.index;
  failure.rank = job_.first_rank + exit.index;
  failure.host = host_name();
  failure.command = fmt::format("{}", fmt::join(options_.command, " "));
  failure.attempt = job_.restart_count;
  failure.max_restarts = job_.max_restarts;
  read_error_file(error_files_[static_cast<std::size_t>(exit.index)], failure);
  if (exit.signal == SIGKILL && failure.error.empty()) failure.error = lack_of_memory(memory_kills_, memory_kills());
  return failure;
}

void WorkerGroup::note_failure(const Exit& exit) {
  result_.failure = make_failure(exit);
  tail_is_noted_ = false;
  recorders_.dump(consoles_.err());
}

// What the worker has written is read first.
void WorkerGroup::note_tail(Failure& failure) {
  relay_.serve();
  const auto tail = relay_.stderr_tail(failure.local_rank);
  failure.stderr_seen = tail.has_value();
  if (!tail) return;
  failure.stderr_tail = tail->lines();
  if (failure.error.empty()) failure.error = tail->message_before_stack();
}

}  // namespace lockstep::launch
