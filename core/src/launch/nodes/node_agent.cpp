#include "launch/nodes/node_agent.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <numeric>
#include <utility>
#include <vector>

#include "base/host.h"
#include "base/poll.h"
#include "launch/job/first_failure.h"
#include "launch/nodes/node_link.h"
#include "launch/process/program.h"
#include "lockstep/base/environment.h"

namespace lockstep::launch {

using MaybeEnd = std::optional<JobEnd>;

Result<NodeInfo> describe_node(const JobOptions& options) {
  const NodesOptions& nodes = options.nodes;
  NodeInfo info;
  LOCKSTEP_ASSIGN_OR_RETURN(info.id, make_job_key());
  info.id.resize(16);
  info.node_rank = nodes.node_rank;
  info.workers = options.workers;
  info.host = host_name();
  info.pid = static_cast<int>(getpid());
  info.version = nodes.version;
  info.command = fmt::format("{}", fmt::join(options.command, " "));
  info.same_command = nodes.same_command;
  info.min_nodes = nodes.min_nodes;
  info.max_nodes = nodes.max_nodes;
  info.max_restarts = options.max_restarts;
  info.grace_ms = options.grace.count();
  info.silence_ms = nodes.meeting.silence.count();
  info.role = options.role;
  info.join_timeout_ms = nodes.join_timeout.count();
  info.last_call_ms = nodes.last_call.count();
  const std::string path = Environment::of_process().get("PATH").value_or("/usr/bin:/bin");
  const auto executable = find_executable(options.command.front(), path);
  if (executable.ok()) return info;
  info.problem = executable.status().message();
  info.problem_code = exit_code_of(executable.status());
  return info;
}

Result<JobEnd> NodeAgent::run() {
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(const MaybeEnd end, act());
    if (end) return *end;
    LOCKSTEP_ASSIGN_OR_RETURN(const MaybeEnd left, wait());
    if (left) return *left;
  }
}

Result<MaybeEnd> NodeAgent::act() {
  const JobState& state = link_.state();
  say_notes(link_, consoles_.err(), options_.nodes.reports);
  if (state.phase() == Phase::kOver && link_.group_rank() < 0 && state.refusal(link_.self().id)) {
    return Status(ErrorCode::kMismatch, *state.refusal(link_.self().id));
  }
  if (state.phase() == Phase::kOver) {
    const JobEnd end = over();
    return MaybeEnd(end);
  }
  if (const auto why = state.refusal(link_.self().id)) return Status(ErrorCode::kMismatch, *why);
  const int rank = link_.group_rank();
  if (rank < 0) {
    if (!place_due_) place_due_ = Deadline::after(options_.nodes.join_timeout);
    return MaybeEnd();
  }
  place_due_.reset();
  const int attempt = state.attempt();
  if (state.phase() == Phase::kStarting && rank == 0 && std::exchange(served_, attempt) != attempt) {
    LOCKSTEP_RETURN_IF_ERROR(open_services());
  }
  if (state.phase() == Phase::kRunning && std::exchange(ran_, attempt) != attempt) {
    LOCKSTEP_ASSIGN_OR_RETURN(const MaybeEnd end, run_attempt());
    if (end) return end;
    return act();
  }
  if (state.phase() == Phase::kStopping && std::exchange(stopped_, attempt) != attempt) {
    LOCKSTEP_RETURN_IF_ERROR(link_.tell({.kind = EventKind::kStopped, .number = attempt}));
  }
  return MaybeEnd();
}

JobEnd NodeAgent::over() const {
  const Outcome& outcome = link_.state().outcome();
  const bool reports = options_.nodes.reports;
  if (outcome.failure && reports) consoles_.err().say(format_failure(*outcome.failure));
  if (!outcome.reason.empty() && reports) consoles_.err().say("lockstep: " + outcome.reason);
  return {outcome.code, false, outcome.failure, outcome.reason};
}

// The other nodes wait for the addresses, or for the reason why there are none.
Status NodeAgent::open_services() {
  services_.reset();
  JobSpec job = job_;
  job.master_addr = link_.self().address;
  job.master_port = 0;
  const int attempt = link_.state().attempt();
  auto services = JobServices::start(job, link_.self().address);
  if (!services.ok()) {
    return link_.tell({.kind = EventKind::kUnable, .number = attempt, .text = services.status().message(), .code = 1});
  }
  services_ = std::move(services).value();
  return link_.tell({.kind = EventKind::kServices,
                     .number = attempt,
                     .master_addr = job.master_addr,
                     .master_port = job.master_port,
                     .store = job.store});
}

Result<MaybeEnd> NodeAgent::run_attempt() {
  const JobState& state = link_.state();
  JobSpec job = job_;
  job.restart_count = state.attempt();
  job.restarts = state.restarts();
  job.node_rank = link_.group_rank();
  job.num_nodes = static_cast<int>(state.members().size());
  job.first_rank = state.first_rank(job.node_rank);
  job.world_size = state.world_size();
  const RoleRanks role = state.role_ranks(job.node_rank);
  job.first_role_rank = role.first;
  job.role_world_size = role.of;
  job.master_addr = state.services().master_addr;
  job.master_port = state.services().master_port;
  job.store = state.services().store;
  auto run = WorkerGroup(options_, job, consoles_, logs_, signals_, standby_, watch_, &link_).run();
  if (!run.ok()) {
    static_cast<void>(link_.tell({.kind = EventKind::kUnable,
                                  .number = job.restart_count,
                                  .text = run.status().message(),
                                  .code = 1}));  // the first error is the one to report
    return run.status();
  }
  const RunResult& result = run.value();
  if (!result.leftovers.ok()) consoles_.err().say("lockstep: " + result.leftovers.message());
  if (result.signal != 0) {
    // Once more, in case that it came before the workers ran.
    static_cast<void>(link_.tell({.kind = EventKind::kLeave, .number = result.signal}));
    return MaybeEnd(JobEnd{.code = code_after_signal(result), .signalled = true});
  }
  LOCKSTEP_RETURN_IF_ERROR(result.nodes);
  if (!result.program.ok()) {
    LOCKSTEP_RETURN_IF_ERROR(link_.tell({.kind = EventKind::kUnable,
                                         .number = job.restart_count,
                                         .text = result.program.message(),
                                         .code = exit_code_of(result.program)}));
  } else if (!result.leftovers.ok()) {
    // They may hold a port or a device that the next attempt needs.
    LOCKSTEP_RETURN_IF_ERROR(link_.tell(
        {.kind = EventKind::kUnable, .number = job.restart_count, .text = result.leftovers.message(), .code = 1}));
  } else if (!result.failure && !result.stopped) {
    LOCKSTEP_RETURN_IF_ERROR(link_.tell({.kind = EventKind::kDone, .number = job.restart_count}));
    ended_.resize(static_cast<std::size_t>(options_.workers));
    std::iota(ended_.begin(), ended_.end(), job.first_rank);
    ended_job_ = std::move(job);
    look_at_ = Deadline::after(kLookAtEarlyEnds);
  }
  return MaybeEnd();
}

void NodeAgent::look_for_early_ends() {
  const JobState& state = link_.state();
  const bool others_run = state.phase() == Phase::kRunning && state.attempt() == ended_job_.restart_count;
  if (others_run) static_cast<void>(tell_of_early_ends(ended_job_, ended_));  // the store may be busy: next time
  look_at_ = others_run && !ended_.empty() ? Deadline::after(kLookAtEarlyEnds) : Deadline::never();
}

void NodeAgent::report_waiting() {
  constexpr std::chrono::seconds kEvery(10);
  const JobState& state = link_.state();
  const std::string missing = options_.nodes.reports ? state.waits_for() : "";
  const auto now = Deadline::Clock::now();
  if (missing.empty()) {
    waits_since_.reset();
    report_due_ = Deadline::never();
    return;
  }
  if (!waits_since_) waits_since_ = now;
  if (report_due_.expired()) {
    consoles_.err().say(fmt::format("lockstep: has waited {:.0f} s at {} for {}. There: {}",
                                    std::chrono::duration<double>(now - *waits_since_).count(),
                                    options_.nodes.meeting.endpoint.text(), missing, state.list_members()));
  }
  if (report_due_.is_never() || report_due_.expired()) report_due_ = Deadline::after(kEvery);
}

Result<MaybeEnd> NodeAgent::wait() {
  report_waiting();
  std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}, {link_.fd(), POLLIN, 0}};
  consoles_.flush();
  consoles_.add_to(polled);
  const Deadline place_due = place_due_.value_or(Deadline::never());
  const Deadline due = earlier(earlier(report_due_, look_at_), earlier(link_.next_due(), place_due));
  const auto waited = poll_until(polled, due);
  LOCKSTEP_RETURN_IF_ERROR(waited.status().with_context("cannot wait for the other nodes"));
  consoles_.serve();
  if (polled[0].revents != 0) {
    if (const int number = signals_.take(); number != 0) {
      static_cast<void>(link_.tell({.kind = EventKind::kLeave, .number = number}));
      return MaybeEnd(JobEnd{.code = 128 + number, .signalled = true});
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(link_.serve());
  if (look_at_.expired()) look_for_early_ends();
  if (place_due_ && place_due_->expired()) {
    return Status(
        ErrorCode::kTimeout,
        fmt::format("no place in the job became free for {:.0f} s (--rdzv-conf join_timeout). It has: {}",
                    std::chrono::duration<double>(options_.nodes.join_timeout).count(), link_.state().list_members()));
  }
  return MaybeEnd();
}

}  // namespace lockstep::launch
