#include "hierarchical_group.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/fault_point.h"
#include "base/fnv1a.h"
#include "engine/core/error_text.h"
#include "engine/core/group_registry.h"
#include "engine/core/long_wait.h"
#include "engine/core/timing.h"
#include "lockstep/base/log.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
// A wait in which nothing moves spins, yields its core up to kYieldFor, then sleeps on the transport. Ranks of its own
// machine do not wake it, so it sleeps only kNap at a time, and kLongNap after kLongIdle.
constexpr auto kSpinFor = std::chrono::microseconds(2);
constexpr auto kYieldFor = std::chrono::microseconds(300);
constexpr auto kNap = std::chrono::microseconds(100);
constexpr auto kLongNap = std::chrono::microseconds(1000);
constexpr auto kLongIdle = std::chrono::milliseconds(20);
// How long a rank that breaks the group waits until the others have been told, and how much it tells.
constexpr auto kTellFor = std::chrono::milliseconds(100);
constexpr std::size_t kTextBytes = 2048;

// Not under the group's lock: the output may block.
void log_warning(const std::string& text) {
  if (!text.empty()) log::warning(text);
}

}  // namespace

Result<std::shared_ptr<HierarchicalOperation>> HierarchicalGroup::begin(Request request, bool blocking,
                                                                        KeepAlive keep_alive) {
  MutexLock lock(mutex_);
  if (closed_) return destroyed();
  if (!break_status_.ok()) return break_status_;
  auto operation = std::make_shared<HierarchicalOperation>(parts_->context, std::move(request), next_sequence());
  operation->blocking = blocking;
  operation->keep_alive = std::move(keep_alive);
  parts_->steps.add(operation);
  LOCKSTEP_FAULT_POINT("hierarchical: called");
  progress_all();
  return operation;
}

bool HierarchicalGroup::progress_all() {
  if (!break_status_.ok()) return false;
  bool moved = transport_->progress();
  if (const Status& reported = parts_->messages.reported_break(); !reported.ok()) {
    (void)break_group(reported);
    return true;
  }
  parts_->messages.progress();
  moved = parts_->mailbox.progress() || moved;
  moved = parts_->steps.progress() || moved;
  if (const Status& failure = parts_->steps.failure(); !failure.ok()) (void)break_group(failure);
  finish_transfers();
  set_busy(break_status_.ok() && !parts_->idle());
  return moved;
}

void HierarchicalGroup::finish_transfers() {
  const Transfer* const lost = parts_->mailbox.finish();
  // The peer is gone in the middle of a message.
  if (lost == nullptr || !check_local_groups().ok()) return;
  const int peer = lost->is_send ? lost->peer : lost->from;
  (void)break_group(parts_->watch.loss_of(peer, describe(*lost, names())));
}

bool HierarchicalGroup::on_active_message(ActiveMessage message) {
  if (parts_ == nullptr) return false;
  const auto header = unpack_header(message.header, parts_->context.token, group_size());
  if (!header) return false;
  if (header->type == ActiveMessageHeader::Type::kMessage) {
    parts_->mailbox.arrived(*header, std::move(message));
    return true;
  }
  if (message.handle != nullptr) return false;
  parts_->messages.arrived(*header, message.data);
  return false;
}

bool HierarchicalGroup::pause(Clock::duration idle) {
  if (idle < kSpinFor) {
    cpu_relax();
    return false;
  }
  if (GroupRegistry::of_process().progress_others(*this).moved) return true;
  if (idle < kYieldFor) {
    sched_yield();
    return false;
  }
  {
    MutexLock lock(mutex_);
    if (!break_status_.ok() || !transport_->may_sleep()) return false;
  }
  transport_->sleep(idle < kLongIdle ? kNap : kLongNap);
  return false;
}

Status HierarchicalGroup::wait_until_over(const std::function<bool()>& over, const Transfer* transfer,
                                          Deadline deadline) {
  Watch watch;
  auto last_check = watch.progressed;
  auto idle_since = watch.progressed;
  for (;;) {
    const auto now = Clock::now();
    {
      MutexLock lock(mutex_);
      if (over()) return {};
      if (!break_status_.ok()) return break_status_;
      if (progress_all()) watch.progressed = idle_since = now;
      if (over()) return {};
      if (!break_status_.ok()) return break_status_;
      const bool expired = !deadline.is_never() && now >= deadline.when();
      if (expired || now - last_check >= kCheckEvery) {
        last_check = now;
        const Status status = check(transfer, expired, watch);
        if (!status.ok()) return over() ? Status() : status;
      }
    }
    log_warning(std::exchange(watch.warning, {}));
    if (pause(now - idle_since)) idle_since = now;
  }
}

Status HierarchicalGroup::run(const RequestView& request, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto operation, begin(request.copy(), /*blocking=*/true, nullptr));
  LOCKSTEP_RETURN_IF_ERROR(wait_until_over([&] { return operation->over.load(); }, nullptr, deadline));
  return operation->status;
}

Result<std::shared_ptr<Operation::State>> HierarchicalGroup::start(Request request, KeepAlive keep_alive) {
  auto state = std::make_shared<HierarchicalState>(shared_from_this());
  LOCKSTEP_ASSIGN_OR_RETURN(state->collective, begin(std::move(request), /*blocking=*/false, std::move(keep_alive)));
  let_others_catch_up(*this, [this] {
    MutexLock lock(mutex_);
    if (parts_->steps.pending() <= Communicator::kMaxPending || !break_status_.ok() || closed_) return true;
    progress_all();
    return false;
  });
  return std::shared_ptr<Operation::State>(std::move(state));
}

Status HierarchicalGroup::begin(const std::shared_ptr<HierarchicalState>& transfer) {
  if (closed_) return destroyed();
  if (!break_status_.ok()) return break_status_;
  parts_->mailbox.start(transfer);
  return {};
}

Status HierarchicalGroup::run(Transfer transfer, Deadline deadline) {
  const auto state = std::make_shared<HierarchicalState>(shared_from_this());
  state->transfer = std::move(transfer);
  {
    MutexLock lock(mutex_);
    LOCKSTEP_RETURN_IF_ERROR(begin(state));
  }
  return wait(*state, deadline);
}

Result<std::shared_ptr<Operation::State>> HierarchicalGroup::start(Transfer transfer, KeepAlive keep_alive) {
  auto state = std::make_shared<HierarchicalState>(shared_from_this());
  state->keep_alive = std::move(keep_alive);
  state->transfer = std::move(transfer);
  MutexLock lock(mutex_);
  LOCKSTEP_RETURN_IF_ERROR(begin(state));
  progress_all();
  return std::shared_ptr<Operation::State>(std::move(state));
}

Status HierarchicalGroup::wait(Operation::State& state, Deadline deadline) {
  const auto& own = static_cast<const HierarchicalState&>(state);
  LOCKSTEP_RETURN_IF_ERROR(wait_until_over([&] { return own.is_over(); }, own.awaited_transfer(), deadline));
  return own.collective ? own.collective->status : own.status;
}

bool HierarchicalGroup::test(Operation::State& state) {
  if (state.is_over()) return true;
  std::string warning;
  {
    MutexLock lock(mutex_);
    Watch& watch = state.watch;
    const auto now = Clock::now();
    if (progress_all()) watch.progressed = now;
    if (now - watch.checked >= kCheckEvery && break_status_.ok() && !state.is_over()) {
      // Time between calls of test() does not count as time without progress.
      const auto unwatched = now - watch.checked - kCheckEvery;
      watch.progressed = std::min(now, watch.progressed + unwatched);
      leave_out_time_between_tests(watch, now);
      watch.checked = now;
      watch.shows = false;
      const auto& own = static_cast<const HierarchicalState&>(state);
      (void)check(own.awaited_transfer(), /*expired=*/false, watch);
      warning = std::exchange(watch.warning, {});
    }
    if (state.is_over() || !break_status_.ok()) return true;
  }
  log_warning(warning);
  GroupRegistry::of_process().progress_others(*this);
  return false;
}

void HierarchicalGroup::progress() {
  MutexLock lock(mutex_);
  if (!parts_->idle()) progress_all();
}

bool HierarchicalGroup::try_progress() {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  return !closed_ && progress_all();
}

Status HierarchicalGroup::check(const Transfer* transfer, bool expired, Watch& watch) {
  LOCKSTEP_RETURN_IF_ERROR(check_local_groups());
  const GroupContext& context = parts_->context;
  const HierarchicalOperation* const oldest = parts_->steps.oldest();
  show_long_wait(*this, watch, /*in_itself=*/transfer != nullptr, [&] {
    if (transfer != nullptr) return describe(*transfer, names()) + describe_place(transfer->place);
    return oldest == nullptr ? std::string() : oldest->describe(context) + oldest->call.place.describe();
  });
  const Status found = parts_->watch.check(transfer, expired, watch);
  return found.ok() ? found : break_group(found);
}

Status HierarchicalGroup::check_local_groups() {
  if (!break_status_.ok()) return break_status_;
  const Status local = locals_.health();
  return local.ok() ? local : break_group(local);
}

Status HierarchicalGroup::break_group(const Status& why) {
  if (!break_status_.ok()) return break_status_;
  locals_.abort(why.code(), why.message());
  // If another rank of the machine was first, its reason is the group's.
  break_status_ = locals_.before().health();
  parts_->messages.tell_neighbours(ControlMessages::Type::kAbort, shortened(break_status_.message(), kTextBytes),
                                   static_cast<std::int64_t>(break_status_.code()));
  transport_->close(/*gently=*/true, DrainTimeout(kTellFor).remaining());
  parts_->steps.fail(break_status_);
  parts_->mailbox.fail(break_status_);
  parts_->messages.clear();
  set_busy(false);
  return break_status_;
}

void HierarchicalGroup::abort(const std::string& reason) {
  MutexLock lock(mutex_);
  (void)break_group({ErrorCode::kAborted, caused(parts_->peers.known_cause(rank_), reason)});
}

Status HierarchicalGroup::health() const {
  MutexLock lock(mutex_);
  return break_status_.ok() ? locals_.health() : break_status_;
}

Failure HierarchicalGroup::failure() const {
  Failure failure = locals_.before().failure();  // other groups see a death on another machine by their connections
  failure.status = health();
  failure.family = family();
  return failure;
}

void HierarchicalGroup::hear(const Failure& failure) {
  MutexLock lock(mutex_);
  if (closed_ || !break_status_.ok()) return;
  if (failure.family == family()) return static_cast<void>(break_group(failure.status));
  locals_.hear(failure);
  if (!check_local_groups().ok()) return;
  parts_->messages.tell_neighbours(ControlMessages::Type::kCause, parts_->peers.known_cause(rank_));
  transport_->progress();
}

Status HierarchicalGroup::check_present(const std::vector<int>& ranks) {
  MutexLock lock(mutex_);
  if (closed_) return {};
  progress_all();
  for (const int rank : ranks) {
    // A broken group has closed its connections: they say nothing any more about the ranks of other machines.
    const bool visible = break_status_.ok() || parts_->context.is_local(rank);
    if (!visible) continue;
    if (!parts_->peers.is_gone(rank)) {
      // Its death is seen over a connection: that of a neighbour, which tells the others, or else one of this rank's
      // own.
      const bool is_seen =
          std::any_of(ranks.begin(), ranks.end(), [&](int other) { return topology_.are_neighbours(rank, other); });
      if (!is_seen) parts_->messages.reach(rank);
      continue;
    }
    const std::string cause = parts_->peers.known_cause(rank);
    const Member& member = topology_.member(rank);
    return loss(
        cause.empty() ? first_cause(break_status_.message()) : cause,
        fmt::format("{} (pid {} on {}) {}", roster_.name(rank), member.pid, member.host, parts_->peers.how_gone(rank)));
  }
  return {};
}

// Not the token itself, which nobody else may know: the identity is shown to readers of recorders.
std::uint64_t HierarchicalGroup::identity() const {
  MutexLock lock(mutex_);
  return fnv1a(parts_->context.token);
}

std::vector<int> HierarchicalGroup::absent(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < group_size(); ++rank) {
    if (rank != rank_ && !board_.has_called(rank, sequence)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace lockstep::comm
