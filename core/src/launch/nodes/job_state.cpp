#include "launch/nodes/job_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <numeric>
#include <utility>

#include "launch/process/process_tree.h"

namespace lockstep::launch {
namespace {

constexpr int kNodeLostCode = 1;  // the launcher's exit code
constexpr int kCannotStartCode = 1;

// Nodes without a rank come after those with one, except the one that serves the store: others know its address.
int place(const NodeInfo& info) {
  if (info.node_rank >= 0) return info.node_rank;
  return info.serves ? -1 : INT_MAX;
}

std::string seconds(long milliseconds) {
  return fmt::format("{:g} s", static_cast<double>(milliseconds) / 1000);
}

std::string nnodes(const NodeInfo& info) {
  return info.min_nodes == info.max_nodes ? std::to_string(info.max_nodes)
                                          : fmt::format("{}:{}", info.min_nodes, info.max_nodes);
}

}  // namespace

std::vector<Note> JobState::apply(const Event& event) {
  notes_.clear();
  if (event.kind == EventKind::kJoin) arrive(event.info);
  if (event.kind == EventKind::kLost) present_.erase(event.node);
  if (phase_ == Phase::kOver) return {};
  switch (event.kind) {
    case EventKind::kJoin: join(event.info); break;
    case EventKind::kTimer: timer_over(event.number); break;
    case EventKind::kServices: services(event); break;
    case EventKind::kDone: done(event); break;
    case EventKind::kFailed: failed(event); break;
    case EventKind::kUnable: unable(event); break;
    case EventKind::kStopped: stopped(event); break;
    case EventKind::kLeave: gone(event, Cause::kNodeLeft); break;
    case EventKind::kLost: gone(event, Cause::kNodeLost); break;
    case EventKind::kEnd:
      called_off_ = true;
      finish({event.code, event.text});
      break;
    case EventKind::kSignal: break;  // changes nothing here: NodeLink::take_signals()
  }
  return std::exchange(notes_, {});
}

// A store that serves one job ends with it, so a launcher that comes late cannot begin another job there.
void JobState::arrive(const NodeInfo& info) {
  const bool abandoned = rules_ && present_.empty() && phase_ != Phase::kOver;
  if (abandoned && info.store_outlives_job) finish({kNodeLostCode, "all of its launchers were lost"});
  present_.insert(info.id);
  if (phase_ != Phase::kOver) return;
  late_.insert(info.id);
  std::string& why = refused_[info.id];
  why = fmt::format("the job has ended already{}{}", outcome_.reason.empty() ? "" : ": ", outcome_.reason);
  // Whoever has started the launchers chose their id and endpoint, and needs no advice about another job.
  if (!called_off_) why += ". For another job: " + remedy();
}

std::string JobState::objection(const NodeInfo& info) const {
  const NodeInfo& first = *rules_;
  const auto other = [&](const char* what, const std::string& its, const std::string& firsts) {
    return fmt::format("{} has {} '{}', and {} has '{}'; they must be the same on all nodes", info.text(), what, its,
                       first.text(), firsts);
  };
  if (info.version != first.version) return other("Lockstep", info.version, first.version);
  if (nnodes(info) != nnodes(first)) return other("--nnodes", nnodes(info), nnodes(first));
  if (info.max_restarts != first.max_restarts) {
    return other("--max-restarts", std::to_string(info.max_restarts), std::to_string(first.max_restarts));
  }
  if (info.grace_ms != first.grace_ms) return other("--grace", seconds(info.grace_ms), seconds(first.grace_ms));
  if (info.silence_ms != first.silence_ms) {
    return other("--rdzv-conf silence", seconds(info.silence_ms), seconds(first.silence_ms));
  }
  if (first.same_command && info.command != first.command) return other("the program", info.command, first.command);
  if (!info.problem.empty()) return fmt::format("{}: {}", info.text(), info.problem);
  return {};
}

void JobState::refuse(const NodeInfo& info, const std::string& why) {
  refused_[info.id] = why;
  note(fmt::format("refused {}: {}", info.text(), why));
}

void JobState::join(const NodeInfo& info) {
  if (member(info.id) != nullptr || refused_.contains(info.id)) return;
  if (!rules_) rules_ = info;
  const bool before_start = phase_ == Phase::kGathering && attempt_ < 0;
  if (const std::string why = objection(info); !why.empty()) {
    // Without this node a job of a fixed size cannot start at all, and all should say why.
    const bool needed = before_start && info.min_nodes == info.max_nodes;
    if (!needed) return refuse(info, why);
    return finish({info.problem_code == 0 ? kCannotStartCode : info.problem_code, why});
  }
  const Member* const twin = twin_of(info);
  if (twin != nullptr && before_start) {
    return refuse(info, fmt::format("node rank {} is there already: {}. Each node needs its own --node-rank. For "
                                    "another job: {}",
                                    info.node_rank, twin->info.text(), remedy()));
  }
  if (is_closed()) {
    return refuse(info, fmt::format("the job has all of its nodes, and no restart in which one could be replaced: {}. "
                                    "For another job: {}",
                                    list_members(), remedy()));
  }
  if (phase_ == Phase::kGathering && twin == nullptr && static_cast<int>(members_.size()) < rules_->max_nodes) {
    note(fmt::format("{} joined", info.text()), attempt_ >= 0);
    members_.push_back({info});
    return gather();
  }
  standby_.push_back(info);
  if (twin != nullptr || phase_ != Phase::kRunning || situation(Cause::kNodeJoined).seated >= rules_->max_nodes) {
    return note(
        fmt::format("{} waits for a place, and ends with an error if none becomes free. The job has {}. For "
                    "another job: {}",
                    info.text(), list_members(), remedy()));
  }
  note(fmt::format("{} asks to join", info.text()));
  disturbed(Cause::kNodeJoined, {});
}

void JobState::services(const Event& event) {
  if (phase_ != Phase::kStarting || event.number != attempt_ || group_rank(event.node) != 0) return;
  services_ = event;
  phase_ = Phase::kRunning;
  // For nodes that have come since the attempt was made.
  if (candidates() > 0 && static_cast<int>(members_.size()) < rules_->max_nodes) disturbed(Cause::kNodeJoined, {});
}

void JobState::done(const Event& event) {
  Member* const one = member(event.node);
  if (one == nullptr || event.number != attempt_ || phase_ != Phase::kRunning) return;
  one->done = true;
  if (std::all_of(members_.begin(), members_.end(), [](const Member& member) { return member.done; })) finish({});
}

void JobState::failed(const Event& event) {
  if (event.number != attempt_ || phase_ != Phase::kRunning) return;
  failure_ = event.failure;
  failure_->node_rank = group_rank(event.node);
  failure_->attempt = restarts_;
  disturbed(Cause::kWorkerFailed, {exit_code_of(failure_->exit), "", failure_});
}

void JobState::unable(const Event& event) {
  const Member* const one = member(event.node);
  if (one == nullptr || event.number != attempt_) return;
  const bool serves = one->info.serves;
  const std::string why = fmt::format("{}: {}", one->info.text(), event.text);
  const bool runs = phase_ == Phase::kStarting || phase_ == Phase::kRunning;
  std::erase_if(members_, [&](const Member& member) { return member.info.id == event.node; });
  if (serves || (!runs && static_cast<int>(members_.size()) < rules_->min_nodes)) return finish({event.code, why});
  if (runs) {
    failure_.reset();
    what_ = why;
    disturbed(Cause::kNodeLeft, {event.code, why});
  }
  if (phase_ == Phase::kOver) return;
  refused_[event.node] = why;
  if (runs) return;
  note(why);
  gather();
}

void JobState::stopped(const Event& event) {
  Member* const one = member(event.node);
  if (one == nullptr || event.number != attempt_ || phase_ != Phase::kStopping) return;
  one->stopped = true;
  gather();
}

void JobState::gone(const Event& event, Cause cause) {
  std::erase_if(standby_, [&](const NodeInfo& info) { return info.id == event.node; });
  refused_.erase(event.node);
  Member* const one = member(event.node);
  if (one == nullptr) return;
  const NodeInfo info = one->info;
  const int rank = group_rank(event.node);
  const std::string what =
      cause == Cause::kNodeLost
          ? fmt::format("{} was lost: its launcher died, or its machine cannot be reached", info.text())
          : fmt::format("{} was asked to end by {}", info.text(), signal_name(event.number));
  const bool runs = phase_ == Phase::kStarting || phase_ == Phase::kRunning;
  // The store ends with the launcher that serves it.
  if (cause == Cause::kNodeLeft && info.serves) return finish({128 + event.number, what});
  if (runs && one->done) {
    one->gone = true;
    return;
  }
  std::erase_if(members_, [&](const Member& member) { return member.info.id == event.node; });
  if (!runs) note(what);
  if (runs) {
    failure_.reset();
    what_ = info.node_rank < 0 ? fmt::format("group rank {}: {}", rank, what) : what;
    return disturbed(cause, {cause == Cause::kNodeLost ? kNodeLostCode : 128 + event.number, what});
  }
  if (phase_ == Phase::kGathering) next_epoch();
  gather();
}

void JobState::timer_over(int epoch) {
  if (epoch != epoch_ || phase_ != Phase::kGathering) return;
  (static_cast<int>(members_.size()) >= rules_->min_nodes ? last_call_over_ : join_timed_out_) = true;
  gather();
}

Situation JobState::situation(Cause cause) const {
  const bool running = phase_ == Phase::kStarting || phase_ == Phase::kRunning;
  const auto gone = std::count_if(members_.begin(), members_.end(), [](const Member& member) { return member.gone; });
  const int there = static_cast<int>(members_.size() - static_cast<std::size_t>(gone));
  return {.cause = cause,
          .running = running,
          .nodes = there + (running ? candidates() : 0),
          .seated = running ? there : 0,
          .min_nodes = rules_->min_nodes,
          .max_nodes = rules_->max_nodes,
          .restarts = restarts_,
          .max_restarts = rules_->max_restarts,
          .last_call_over = last_call_over_,
          .join_timed_out = join_timed_out_};
}

void JobState::disturbed(Cause cause, const Outcome& if_over) {
  const Decision decision = decide(situation(cause));
  switch (decision.action) {
    case Action::kWait:
    case Action::kStart: return note(decision.reason);
    case Action::kGiveUp: return finish(if_over);
    case Action::kRestart: break;
  }
  if (decision.uses_restart) ++restarts_;
  cause_ = cause;
  if (!what_.empty()) note(std::exchange(what_, {}));
  notes_.push_back({fmt::format("all workers stop and start again: {}", decision.reason), true,
                    std::exchange(failure_, std::nullopt)});
  phase_ = Phase::kStopping;
  gather();
}

void JobState::gather() {
  if (phase_ == Phase::kStopping) {
    std::erase_if(members_, [](const Member& member) { return member.gone; });
    if (!std::all_of(members_.begin(), members_.end(), [](const Member& member) { return member.stopped; })) return;
    phase_ = Phase::kGathering;
    next_epoch();
  }
  if (phase_ != Phase::kGathering) return;
  fill_from_standby();
  const Situation now = situation(cause_);
  const Decision decision = decide(now);
  if (decision.action == Action::kStart) return start(decision.reason);
  if (decision.action == Action::kGiveUp) {
    return finish({kCannotStartCode,
                   fmt::format("{} ({}). There: {}", decision.reason, "--rdzv-conf join_timeout", list_members())});
  }
  if (now.nodes == now.min_nodes && cause_ == Cause::kStart) next_epoch();  // the last call begins
}

void JobState::fill_from_standby() {
  for (auto info = standby_.begin(); info != standby_.end();) {
    if (twin_of(*info) != nullptr || static_cast<int>(members_.size()) >= rules_->max_nodes) {
      ++info;
      continue;
    }
    note(fmt::format("{} joined", info->text()));
    members_.push_back({*info});
    info = standby_.erase(info);
  }
}

void JobState::start(const std::string& reason) {
  std::stable_sort(members_.begin(), members_.end(),
                   [](const Member& left, const Member& right) { return place(left.info) < place(right.info); });
  for (Member& member : members_) member = {member.info};
  ++attempt_;
  phase_ = Phase::kStarting;
  services_ = {};
  note(fmt::format("start {} with {} worker{} on {} node{}: {}", attempt_, world_size(), world_size() == 1 ? "" : "s",
                   members_.size(), members_.size() == 1 ? "" : "s", reason),
       attempt_ > 0);
}

void JobState::finish(Outcome outcome) {
  outcome_ = std::move(outcome);
  phase_ = Phase::kOver;
  // They have run nothing. If they ended with success, whoever started them for another job would not notice.
  for (const NodeInfo& info : std::exchange(standby_, {})) {
    refused_[info.id] = fmt::format(
        "the job has ended, and no place in it became free for this launcher, which has "
        "run nothing. For another job: {}",
        remedy());
  }
}

void JobState::next_epoch() {
  ++epoch_;
  last_call_over_ = false;
  join_timed_out_ = false;
}

std::optional<Timer> JobState::timer() const {
  if (phase_ != Phase::kGathering || !rules_) return std::nullopt;
  const bool enough = static_cast<int>(members_.size()) >= rules_->min_nodes;
  return Timer{epoch_, std::chrono::milliseconds(enough ? rules_->last_call_ms : rules_->join_timeout_ms)};
}

bool JobState::is_closed() const {
  const bool runs = phase_ == Phase::kStarting || phase_ == Phase::kRunning;
  return runs && rules_->min_nodes == rules_->max_nodes && restarts_ >= rules_->max_restarts;
}

// A launcher's store serves one job, whatever its id.
std::string JobState::remedy() const {
  const bool one_job = rules_ && !rules_->store_outlives_job;
  return one_job ? "another --rdzv-endpoint (a port of its own)" : "another --rdzv-id";
}

Member* JobState::member(const std::string& node) {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const Member& member) { return member.info.id == node; });
  return found == members_.end() ? nullptr : &*found;
}

const Member* JobState::twin_of(const NodeInfo& info) const {
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const Member& member) {
    return info.node_rank >= 0 && member.info.node_rank == info.node_rank && !member.gone;
  });
  return found == members_.end() ? nullptr : &*found;
}

int JobState::candidates() const {
  return static_cast<int>(
      std::count_if(standby_.begin(), standby_.end(), [&](const NodeInfo& info) { return twin_of(info) == nullptr; }));
}

std::string JobState::waits_for() const {
  if (phase_ != Phase::kGathering || !rules_) return {};
  const auto [there, least] = std::pair(static_cast<int>(members_.size()), rules_->min_nodes);
  if (there >= least) return fmt::format("more nodes, up to {}, until last_call_timeout is over", rules_->max_nodes);
  std::vector<int> missing(static_cast<std::size_t>(rules_->max_nodes));
  std::iota(missing.begin(), missing.end(), 0);
  for (const Member& one : members_) std::erase(missing, one.info.node_rank);
  const bool known = static_cast<int>(missing.size()) == least - there;
  const std::string which = known ? fmt::format(", missing: node {}", fmt::join(missing, ", ")) : "";
  return fmt::format("{} of {} nodes{}", least - there, least, which);
}

int JobState::group_rank(const std::string& node) const {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const Member& member) { return member.info.id == node; });
  return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
}

RoleRanks JobState::role_ranks(int group_rank) const {
  const std::string& role = members_[static_cast<std::size_t>(group_rank)].info.role;
  RoleRanks ranks;
  for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
    const NodeInfo& info = members_[static_cast<std::size_t>(i)].info;
    if (info.role != role) continue;
    if (i < group_rank) ranks.first += info.workers;
    ranks.of += info.workers;
  }
  return ranks;
}

int JobState::world_size() const {
  return first_rank(static_cast<int>(members_.size()));
}

int JobState::first_rank(int group_rank) const {
  int rank = 0;
  for (int i = 0; i < group_rank; ++i) rank += members_[static_cast<std::size_t>(i)].info.workers;
  return rank;
}

std::optional<std::string> JobState::refusal(const std::string& node) const {
  const auto found = refused_.find(node);
  return found == refused_.end() ? std::nullopt : std::optional(found->second);
}

std::string JobState::list_members() const {
  std::string text;
  for (const Member& member : members_) text += (text.empty() ? "" : ", ") + member.info.text();
  return text.empty() ? "none" : text;
}

}  // namespace lockstep::launch
