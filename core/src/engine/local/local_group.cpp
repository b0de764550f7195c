#include "local_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <span>
#include <thread>
#include <utility>

#include "base/fault_point.h"
#include "base/host.h"
#include "base/random.h"
#include "engine/core/error_text.h"
#include "engine/core/group_registry.h"
#include "engine/core/long_wait.h"
#include "engine/core/timing.h"
#include "lockstep/base/log.h"

namespace lockstep::comm {
namespace {

// How long a failed call waits for ranks that are inside its tickets.
constexpr auto kTicketTime = std::chrono::milliseconds(200);

// The caller's text of a refusal, which the collective may read later.
Communicator::KeepAlive keep_reason(Request& request) {
  const auto reason = std::make_shared<std::string>(static_cast<const char*>(request.input.data), request.input.bytes);
  request.input.data = reason->data();
  return reason;
}

}  // namespace

LocalGroup::LocalGroup(const CommunicatorOptions& options, HandOver parts)
    : Group(options),
      memory_(rank_, group_size_, name_, roster_, arena_, std::move(parts)),
      waiting_(memory_, *this),
      watch_(memory_, waiting_),
      collectives_(memory_, waiting_),
      mailbox_(memory_, waiting_),
      small_calls_{CopyWays(memory_, &RankState::small_ways)},
      ring_(memory_, waiting_),
      reduce_stream_(memory_, waiting_, ring_),
      move_stream_(memory_, waiting_, ring_) {
  std::uint64_t drawn = 0, none = 0;
  if (fill_random(std::as_writable_bytes(std::span(&drawn, 1))).ok())
    memory_.header().identity.compare_exchange_strong(none, drawn);
}

Result<std::shared_ptr<LocalGroup>> LocalGroup::create(Store& store, const CommunicatorOptions& options,
                                                       Deadline deadline) {
  HandOverOptions hand;
  hand.rank = options.rank;
  hand.group_size = options.group_size;
  hand.name = options.name;
  hand.roster = Roster(options.world_ranks);
  hand.control_bytes = ControlLayout(options.group_size).total();
  CommunicatorOptions own = options;
  if (own.arena == nullptr) {
    auto made = SharedArena::create();
    if (!made.ok()) {
      const Status why = made.status().with_context(hand.roster.name(options.rank));
      refuse_hand_over(store, hand, why);
      return why;
    }
    own.arena = std::move(made).value();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(HandOver parts, hand_over(store, *own.arena, hand, deadline));
  return std::shared_ptr<LocalGroup>(new LocalGroup(own, std::move(parts)), LeakInForks());
}

Status LocalGroup::begin(Collective& collective, const std::shared_ptr<LocalOperation>& operation) {
  if (!is_open()) return why_not_open();
  collective.number(next_sequence());
  return collectives_.add(collective, operation);
}

Result<std::shared_ptr<Operation::State>> LocalGroup::start(Request request, KeepAlive keep_alive) {
  if (request.kind == Kind::kRefusal) keep_alive = keep_reason(request);
  LOCKSTEP_ASSIGN_OR_RETURN(auto operation, launch(std::move(request), std::move(keep_alive), Caller::kGoesOn));
  let_others_catch_up(*this, [this] {
    MutexLock lock(mutex_);
    if (!collectives_.all_posted()) progress_all(/*help=*/true);
    return collectives_.all_posted() || waiting_.aborted();
  });
  return std::shared_ptr<Operation::State>(std::move(operation));
}

Result<std::shared_ptr<LocalOperation>> LocalGroup::launch(Request request, KeepAlive keep_alive, Caller caller) {
  auto operation = std::make_shared<LocalOperation>(shared_from_this());
  operation->keep_alive = std::move(keep_alive);
  operation->collective = std::make_unique<Collective>(memory_, waiting_, std::move(request), caller);
  MutexLock lock(mutex_);
  LOCKSTEP_RETURN_IF_ERROR(begin(*operation->collective, operation));
  progress_all(/*help=*/false);
  return operation;
}

Result<std::shared_ptr<Operation::State>> LocalGroup::start(Transfer transfer, KeepAlive keep_alive) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto operation, launch(std::move(transfer), std::move(keep_alive)));
  return std::shared_ptr<Operation::State>(std::move(operation));
}

Result<std::shared_ptr<LocalOperation>> LocalGroup::launch(Transfer transfer, KeepAlive keep_alive) {
  auto operation = std::make_shared<LocalOperation>(shared_from_this());
  operation->keep_alive = std::move(keep_alive);
  operation->transfer = std::move(transfer);
  MutexLock lock(mutex_);
  if (!is_open()) return why_not_open();
  mailbox_.start(operation);
  progress_all(/*help=*/false);
  return operation;
}

void LocalGroup::progress_all(bool help) {
  collectives_.progress(help);
  if (mailbox_.has_work()) mailbox_.progress();
  update_busy();
}

void LocalGroup::update_busy() {
  set_busy((!mailbox_.started().empty() || collectives_.has_started()) && !waiting_.aborted());
}

void LocalGroup::progress() {
  MutexLock lock(mutex_);
  if (has_work()) progress_all(/*help=*/false);
}

bool LocalGroup::try_progress() {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  const std::size_t before = under_way();
  if (!closed_ && has_work()) progress_all(/*help=*/false);
  return under_way() < before;
}

std::optional<MessageLook> LocalGroup::progress_messages() {
  MutexLock lock(mutex_);
  if (mailbox_.has_work()) mailbox_.progress();
  return mailbox_.has_unexpected() ? std::optional(mailbox_.look()) : std::nullopt;
}

bool LocalGroup::try_receive(Transfer& transfer, MessageLook& look) {
  MutexLock lock(mutex_);
  return mailbox_.try_receive(transfer, look);
}

Status LocalGroup::wait(Operation::State& state, Deadline deadline) {
  auto& operation = static_cast<LocalOperation&>(state);
  Status status;
  if (!operation.over.load(std::memory_order_acquire)) {
    Watch watch;
    status = wait_until(
        waiting_, deadline, [&] { return operation.collective ? operation.collective->missing() : -1; },
        [&] {
          MutexLock lock(mutex_);
          if (!operation.over) progress_all(true);
          return operation.over.load(std::memory_order_relaxed);
        },
        [&](bool expired) { return check(operation, expired, watch); });
  }
  if (status.ok()) return operation.status;
  // The caller may now free its buffers.
  if (operation.collective) {
    forget(*operation.collective);
    return status;
  }
  MutexLock lock(mutex_);
  if (!operation.over.load(std::memory_order_relaxed)) mailbox_.fail(operation, std::move(status));
  return operation.status;
}

bool LocalGroup::test_locally(LocalOperation& operation) {
  if (operation.over.load(std::memory_order_acquire) || waiting_.aborted()) return true;
  MutexLock lock(mutex_);
  progress_all(/*help=*/true);
  return operation.over.load(std::memory_order_relaxed) || waiting_.aborted();
}

bool LocalGroup::test(Operation::State& state) {
  auto& operation = static_cast<LocalOperation&>(state);
  if (test_locally(operation)) return true;
  check_while_testing(operation);
  GroupRegistry::of_process().progress_others(*this);
  return waiting_.aborted();
}

// A caller that only tests must learn of deaths too.
void LocalGroup::check_while_testing(LocalOperation& operation) {
  Watch watch;
  {
    MutexLock lock(mutex_);
    if (watch.checked - operation.watch.checked < kCheckEvery) return;
    leave_out_time_between_tests(operation.watch, watch.checked);
    operation.watch.checked = watch.checked;
    watch = operation.watch;
    watch.shows = false;
  }
  (void)check(operation, /*expired=*/false, watch);
  MutexLock lock(mutex_);
  operation.watch = watch;
}

Status LocalGroup::check(const LocalOperation& operation, bool expired, Watch& watch) {
  return operation.collective ? check(*operation.collective, expired, watch)
                              : check(operation.transfer, expired, watch);
}

Status LocalGroup::check(const Collective& collective, bool expired, Watch& watch) {
  if (const Status lost = watch_.check(collective, watch); !lost.ok()) return break_group(lost);
  watch_.look(watch);
  show_long_wait(*this, watch, /*in_itself=*/false,
                 [&] { return collective.describe() + describe_place(collective.request().place); });
  const bool late = loses_patience(watch);
  if (!expired && !late) return {};
  std::uint64_t awaited = 0;
  {
    MutexLock lock(mutex_);
    if (!collective.posted()) awaited = collectives_.awaited();
  }
  if (late) {
    log::warning(warning_of_wait(collective.describe(), awaited != 0 ? watch_.why_queue_is_late(awaited, watch)
                                                                     : watch_.why_late(collective, watch)));
  }
  if (!expired) return {};
  return break_group(awaited != 0 ? watch_.timed_out_in_queue(awaited, watch) : watch_.timed_out(collective, watch));
}

Status LocalGroup::check(const Transfer& transfer, bool expired, Watch& watch) {
  if (const Status lost = watch_.check(transfer); !lost.ok()) {
    // The rank may have sent the message before it ended.
    MutexLock lock(mutex_);
    mailbox_.progress();
    return transfer.over ? Status() : break_group(lost);
  }
  watch_.look(watch);
  const auto what = [&] { return describe(transfer, names()) + describe_place(transfer.place); };
  show_long_wait(*this, watch, /*in_itself=*/true, what);
  if (loses_patience(watch))
    log::warning(warning_of_wait(describe_of(transfer, names(), rank_), watch_.why_late(transfer, watch)));
  return expired ? break_group(watch_.timed_out(transfer, watch)) : Status();
}

Status LocalGroup::break_group(const Status& why) const {
  waiting_.abort(why.code(), why.message());
  return waiting_.abort_status();
}

void LocalGroup::forget(Collective& collective) {
  {
    MutexLock lock(mutex_);
    if (!collective.posted()) return collectives_.remove(collective);  // no other rank knows of it
  }
  DrainTimeout drain(kTicketTime);
  const bool stuck = stuck_.load(std::memory_order_relaxed);
  const bool quiet = collective.quiesce(Deadline::after(stuck ? std::chrono::milliseconds(0) : drain.remaining()));
  MutexLock lock(mutex_);
  collectives_.remove(collective);
  if (quiet) return;
  stuck_.store(true, std::memory_order_relaxed);
  collective.abandon();
}

void LocalGroup::abort(const std::string& reason) {
  waiting_.abort(ErrorCode::kAborted, caused(waiting_.known_cause(rank_), reason));
}

Failure LocalGroup::failure() const {
  Failure failure{health(), {}, family()};
  if (failure.status.code() == ErrorCode::kPeerFailed) failure.dead = watch_.dead();
  return failure;
}

void LocalGroup::hear(const Failure& failure) {
  waiting_.note(first_cause(failure.status.message()));
  if (failure.family == family() || watch_.has_any_of(failure.dead)) (void)break_group(failure.status);
}

// This rank leaves while others may still use its buffers.
void LocalGroup::break_by_leaving(const std::string& operation) const {
  if (waiting_.aborted()) return;
  const std::string how =
      fmt::format("{} (pid {} on {}) left the group with {} under way", me(), getpid(), host_name(), operation);
  const Status why = loss(waiting_.known_cause(rank_), how);
  waiting_.abort(why.code(), why.message());
}

// Ends an operation that is under way when this rank leaves.
void LocalGroup::end_orphan(LocalOperation& operation) {
  Status left(ErrorCode::kAborted, "group '" + name_ + "' was destroyed before this operation was over");
  if (operation.collective) {
    break_by_leaving(operation.collective->describe());
    forget(*operation.collective);
    return operation.finish(std::move(left));
  }
  MutexLock lock(mutex_);
  if (operation.over.load(std::memory_order_relaxed)) return;
  if (mailbox_.is_outgoing(operation.transfer)) break_by_leaving(describe(operation.transfer, names()));
  mailbox_.fail(operation, std::move(left));
}

// Operations that all ranks have called get a moment to finish. After that no rank may use this rank's buffers. If some
// rank still could, the group breaks.
void LocalGroup::close() {
  LOCKSTEP_FAULT_POINT("leave: begun");
  GroupRegistry::of_process().remove(*this);
  DrainTimeout drain;
  std::vector<std::shared_ptr<LocalOperation>> orphans;
  for (;;) {
    MutexLock lock(mutex_);
    progress_all(/*help=*/true);
    if (collectives_.has_met() && !waiting_.aborted() && drain.may_wait()) {
      std::this_thread::yield();
      continue;
    }
    closed_ = true;
    orphans = collectives_.give_up_started();
    orphans.insert(orphans.end(), mailbox_.started().begin(), mailbox_.started().end());
    break;
  }
  for (const auto& orphan : orphans) end_orphan(*orphan);
  LOCKSTEP_FAULT_POINT("leave: quiet");
  memory_.state(memory_.rank()).left.store(1, std::memory_order_seq_cst);
  LOCKSTEP_FAULT_POINT("leave: said");
  waiting_.notify(true);
}

}  // namespace lockstep::comm
