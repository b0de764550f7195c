#include "group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/fault_point.h"
#include "farewell.h"
#include "plan.h"
#include "shm/map_shared.h"

namespace lockstep::comm {
namespace {

// After a failure, how long a call waits for ranks that are inside its tickets.
constexpr auto kTicketTime = std::chrono::milliseconds(200);

// From here on the way in which inputs are copied into control memory matters.
constexpr std::size_t kJudgedBytes = 4096;

// A rank that has seen everyone arrive leaves the others' tickets to them for a moment: they are just about to begin.
constexpr int kSpinsBeforeHelp = 30;

}  // namespace

Communicator::Impl::Impl(int rank, const CommunicatorOptions& options, HandOver parts)
    : memory_(rank, options.world_size, options.name, Roster(options.world_ranks), options.arena, std::move(parts)),
      waiting_(memory_, *this),
      timeout_(options.timeout),
      mailbox_(memory_, waiting_),
      small_ways_(memory_, &RankState::small_ways),
      ring_(memory_, waiting_),
      stream_(memory_, waiting_, ring_),
      move_stream_(memory_, waiting_, ring_) {
  memory_.state(rank).pid.store(static_cast<std::uint32_t>(getpid()), std::memory_order_release);
}

bool Communicator::Impl::admitted() {
  const std::uint64_t next = sequence() + 1;
  if (next <= admitted_until_) return true;
  std::uint64_t completed = next;
  for (int rank = 0; rank < memory_.world(); ++rank) {
    completed = std::min(completed, memory_.state(rank).completed.load(std::memory_order_acquire));
  }
  admitted_until_ = completed + kRing;
  return next <= admitted_until_;
}

Status Communicator::Impl::admit(Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {ErrorCode::kAborted, "group '" + memory_.name() + "' has been destroyed on this rank"};
    if (waiting_.aborted()) return waiting_.abort_status();
    if (admitted()) return {};
  }
  return wait_until(
      waiting_, deadline, [] { return -1; },
      [&] {
        MutexLock lock(mutex_);
        if (admitted()) return true;
        drive(true);
        return false;
      },
      [&](bool expired) { return check_admission(expired); });
}

std::uint64_t Communicator::Impl::next_sequence() {
  const std::uint64_t next = sequence() + 1;
  sequence_.store(next, std::memory_order_relaxed);
  return next;
}

Status Communicator::Impl::post(Collective& collective, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(validate(collective.request(), memory_.rank(), memory_.world()));
  for (;;) {
    LOCKSTEP_RETURN_IF_ERROR(admit(deadline));
    MutexLock lock(mutex_);
    if (!admitted()) continue;  // another thread took the place
    pending_.push_back(&collective);
    Status posted = collective.post(next_sequence());
    if (!posted.ok()) {
      posted = posted.with_context(fmt::format("{} cannot take part in {}", me(), describe(collective)));
      waiting_.abort(posted.code(), posted.message());
      std::erase(pending_, &collective);
    }
    return posted;
  }
}

void Communicator::Impl::drive(bool help) {
  for (Collective* collective : pending_) {
    if (!collective->over() && !waiting_.aborted()) collective->advance(help, scratch_);
  }
  if (mailbox_.wants_pump()) mailbox_.pump();
  reap();
}

void Communicator::Impl::reap() {
  const auto over = [](const Collective* collective) { return collective->over(); };
  if (std::any_of(pending_.begin(), pending_.end(), over)) {
    std::erase_if(pending_, over);
  }
  const std::uint64_t completed = pending_.empty() ? sequence() : pending_.front()->sequence() - 1;
  std::atomic<std::uint64_t>& mine = memory_.state(memory_.rank()).completed;
  if (const std::uint64_t before = mine.load(std::memory_order_relaxed); before != completed) {
    mine.store(completed, std::memory_order_seq_cst);
    // Somebody may wait for a free slot.
    if (completed / (kRing / 2) != before / (kRing / 2)) waiting_.notify(false);
  }
  if (started_.empty()) return;
  std::erase_if(started_, [](const std::shared_ptr<Operation::State>& state) {
    const bool over = state->collective ? state->collective->over() : state->transfer.over;
    if (!over) return false;
    state->status = state->collective ? state->collective->status() : state->transfer.status;
    state->keep_alive.reset();
    state->over.store(true, std::memory_order_release);
    return true;
  });
  set_busy(!started_.empty() && !waiting_.aborted());
}

void Communicator::Impl::forget(Collective& collective) {
  Farewell farewell(kTicketTime);
  const bool stuck = stuck_.load(std::memory_order_relaxed);
  const bool quiet = collective.quiesce(Deadline::after(stuck ? std::chrono::milliseconds(0) : farewell.left()));
  MutexLock lock(mutex_);
  std::erase(pending_, &collective);
  if (quiet) return;
  stuck_.store(true, std::memory_order_relaxed);
  collective.abandon();
}

Status Communicator::Impl::finish_waiting(Collective& collective, Deadline deadline) {
  Watch watch;
  return wait_until(
      waiting_, deadline, [&] { return collective.missing(); },
      [&] {
        MutexLock lock(mutex_);
        if (!collective.over()) drive(true);
        return collective.over() || collective.wants_stream();
      },
      [&](bool expired) { return check(collective, expired, watch); });
}

// The usual case: nothing else is under way and the others are there within microseconds.
bool Communicator::Impl::finish_at_once(Collective& collective) {
  MutexLock lock(mutex_);
  if (pending_.size() != 1 || !mailbox_.idle()) return false;
  for (int spin = 0; spin < waiting_.spins() && !waiting_.aborted(); ++spin) {
    if (collective.advance(/*help=*/spin >= kSpinsBeforeHelp, scratch_)) {
      reap();
      return true;
    }
    if (collective.wants_stream()) return false;
    waiting_.relax();
  }
  return false;
}

Status Communicator::Impl::run(const RequestView& request, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(validate(request, memory_.rank(), memory_.world()));
  SmallCall small(memory_, request);
  if (small.fits()) {
    std::optional<Collective> collective;
    if (run_small(small, request, collective)) return {};
    if (collective) return finish(*collective, deadline);
  }
  return run_at_length(request.copy(), deadline);
}

Status Communicator::Impl::run_at_length(Request request, Deadline deadline) {
  Collective collective(memory_, waiting_, std::move(request), Conduct::kStays);
  LOCKSTEP_RETURN_IF_ERROR(post(collective, deadline));
  if (finish_at_once(collective)) return collective.status();
  return finish(collective, deadline);
}

Status Communicator::Impl::finish(Collective& collective, Deadline deadline) {
  Status status = finish_waiting(collective, deadline);
  if (status.ok() && collective.wants_stream()) status = stream(collective, deadline);
  if (!status.ok()) {
    forget(collective);
    return status;
  }
  return collective.status();
}

Status Communicator::Impl::stream(Collective& collective, Deadline deadline) {
  Watch watch;
  const StagingRing::WaitFor wait_for = [&](const StagingRing::Step& step) {
    return wait_until(
        waiting_, deadline, [] { return -1; }, step, [&](bool expired) { return check(collective, expired, watch); });
  };
  // Earlier operations first: every rank streams in the order of the numbers.
  LOCKSTEP_RETURN_IF_ERROR(wait_for([&] {
    MutexLock lock(mutex_);
    if (pending_.front() == &collective) return true;
    drive(true);
    return pending_.front() == &collective;
  }));
  const Request& request = collective.request();
  Status status = Stream::suits(request) ? stream_.run(request, wait_for)
                                         : move_stream_.run(request, collective.sequence(), wait_for);
  if (status.ok()) status = waiting_.broken_by_now();
  if (status.ok()) {
    MutexLock lock(mutex_);
    collective.finish({});
    reap();
  }
  return status;
}

// The usual case touches nothing but this rank's line and payload and those of the others.
bool Communicator::Impl::run_small(SmallCall& call, const RequestView& request, std::optional<Collective>& collective) {
  MutexLock lock(mutex_);
  if (closed_ || waiting_.aborted() || !pending_.empty() || !admitted()) return false;
  const std::uint64_t sequence = next_sequence();
  // What is smaller goes well either way; no clock is asked for it.
  const bool judged = call.bytes() >= kJudgedBytes;
  const CopyWay way = judged ? small_ways_.way(request) : CopyWay::kPlain;
  const bool large = call.bytes() > Communicator::kInlineBytes;
  if (large && !std::exchange(payloads_touched_, true)) populate(memory_.large_payloads());
  const auto started = judged ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  call.post(waiting_, sequence, way);
  bool agreed = true;
  int rank = 0;
  for (int spin = 0; rank < memory_.world() && spin <= waiting_.spins();) {
    const Post& post = memory_.post(rank, sequence);
    if (post.state.load(std::memory_order_acquire) < 2 * sequence) {
      ++spin;
      waiting_.relax();
      continue;
    }
    agreed = agreed && call.agrees(post);
    ++rank;
  }
  if (rank == memory_.world() && agreed) {
    call.fetch(scratch_);
    if (judged) small_ways_.record(request, started, call.bytes());
    reap();
    return true;
  }
  // Still under the lock: nobody may take the number for completed.
  collective.emplace(memory_, waiting_, request.copy(), Conduct::kStays);
  collective->adopt_small(sequence);
  pending_.push_back(&*collective);
  return false;
}

Result<Operation> Communicator::Impl::start(Request request, KeepAlive keep_alive, std::optional<Deadline> admission) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto state, launch(std::move(request), std::move(keep_alive), Conduct::kLeaves,
                                               admission.value_or(Deadline::after(timeout_))));
  return Operation(std::move(state));
}

Result<std::shared_ptr<Operation::State>> Communicator::Impl::launch(Request request, KeepAlive keep_alive,
                                                                     Conduct conduct, Deadline admission) {
  auto state = std::make_shared<Operation::State>();
  state->group = shared_from_this();
  state->keep_alive = std::move(keep_alive);
  state->collective = std::make_unique<Collective>(memory_, waiting_, std::move(request), conduct);
  LOCKSTEP_RETURN_IF_ERROR(post(*state->collective, admission));
  MutexLock lock(mutex_);
  started_.push_back(state);
  set_busy(true);
  drive(/*help=*/false);
  return state;
}

Status Communicator::Impl::run(Transfer transfer, Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {ErrorCode::kAborted, "group '" + memory_.name() + "' has been destroyed on this rank"};
    if (waiting_.aborted()) return waiting_.abort_status();
    mailbox_.start(transfer);
  }
  Status status = wait_until(
      waiting_, deadline, [] { return -1; },
      [&] {
        MutexLock lock(mutex_);
        if (!transfer.over) drive(true);
        return transfer.over;
      },
      [&](bool expired) { return check(transfer, expired); });
  if (status.ok()) return transfer.status;
  MutexLock lock(mutex_);
  mailbox_.withdraw(transfer);
  return status;
}

bool Communicator::Impl::try_receive(Transfer& transfer) {
  MutexLock lock(mutex_);
  return mailbox_.try_receive(transfer);
}

Result<Operation> Communicator::Impl::start(Transfer transfer, KeepAlive keep_alive) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto state, launch(std::move(transfer), std::move(keep_alive)));
  return Operation(std::move(state));
}

Result<std::shared_ptr<Operation::State>> Communicator::Impl::launch(Transfer transfer, KeepAlive keep_alive) {
  auto state = std::make_shared<Operation::State>();
  state->group = shared_from_this();
  state->keep_alive = std::move(keep_alive);
  state->transfer = std::move(transfer);
  MutexLock lock(mutex_);
  if (closed_) return Status(ErrorCode::kAborted, "group '" + memory_.name() + "' has been destroyed on this rank");
  if (waiting_.aborted()) return waiting_.abort_status();
  mailbox_.start(state->transfer);
  started_.push_back(state);
  set_busy(true);
  drive(/*help=*/false);
  return state;
}

Status Communicator::Impl::wait(Operation::State& state, Deadline deadline) {
  Status status;
  if (!state.over.load(std::memory_order_acquire)) {
    Watch watch;
    status = wait_until(
        waiting_, deadline, [&] { return state.collective ? state.collective->missing() : -1; },
        [&] {
          MutexLock lock(mutex_);
          if (!state.over) drive(true);
          return state.over.load(std::memory_order_relaxed);
        },
        [&](bool expired) {
          return state.collective ? check(*state.collective, expired, watch) : check(state.transfer, expired);
        });
  }
  if (status.ok()) return state.status;
  // The caller may now free its buffers.
  if (!state.collective) return withdraw(state, std::move(status));
  forget(*state.collective);
  return status;
}

// A transfer that has failed; what comes for it later is not delivered.
Status Communicator::Impl::withdraw(Operation::State& state, Status status) {
  MutexLock lock(mutex_);
  if (state.over.load(std::memory_order_relaxed)) return state.status;
  mailbox_.withdraw(state.transfer);
  state.status = std::move(status);
  state.keep_alive.reset();
  state.over.store(true, std::memory_order_release);
  std::erase_if(started_, [&](const auto& started) { return started.get() == &state; });
  set_busy(false);  // the group is broken
  return state.status;
}

bool Communicator::Impl::try_finish(Operation::State& state) {
  if (state.over.load(std::memory_order_acquire) || waiting_.aborted()) return true;
  MutexLock lock(mutex_);
  drive(/*help=*/true);
  return state.over.load(std::memory_order_relaxed) || waiting_.aborted();
}

bool Communicator::Impl::poll(Operation::State& state) {
  if (try_finish(state)) return true;
  look_after(state);
  GroupRegistry::of_process().move_others(*this);
  return waiting_.aborted();
}

// Who polls for ever must learn of deaths too.
void Communicator::Impl::look_after(Operation::State& state) {
  Watch watch;
  {
    MutexLock lock(mutex_);
    if (watch.checked - state.watch.checked < Waiting::kCheckEvery) return;
    state.watch.checked = watch.checked;
    watch = state.watch;
  }
  (void)(state.collective ? check(*state.collective, /*expired=*/false, watch) : check(state.transfer, false));
  MutexLock lock(mutex_);
  state.watch = watch;
}

void Communicator::Impl::empty_rings() {
  MutexLock lock(mutex_);
  if (mailbox_.wants_pump()) mailbox_.pump();
}

void Communicator::Impl::poke() {
  MutexLock lock(mutex_);
  if (!pending_.empty() || mailbox_.wants_pump()) drive(/*help=*/false);
}

bool Communicator::Impl::nudge() {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  const std::size_t started = started_.size();
  if (!closed_ && (!pending_.empty() || mailbox_.wants_pump())) drive(/*help=*/false);
  return started_.size() < started;
}

// An operation that this rank leaves behind.
void Communicator::Impl::end_orphan(Operation::State& state) {
  const bool used = state.collective != nullptr || mailbox_in_use(state.transfer);
  if (used && !waiting_.aborted()) {
    const std::string what = state.collective ? describe(*state.collective) : describe(state.transfer);
    const std::string how = fmt::format("{} (pid {}) left the group with {} under way", me(), getpid(), what);
    waiting_.abort(ErrorCode::kPeerFailed, caused(waiting_.last_words(memory_.rank()), how));
  }
  if (state.collective) {
    forget(*state.collective);
  } else {
    MutexLock lock(mutex_);
    mailbox_.withdraw(state.transfer);
  }
  state.status = {ErrorCode::kAborted, "group '" + memory_.name() + "' was destroyed before this operation was over"};
  state.over.store(true, std::memory_order_release);
}

bool Communicator::Impl::mailbox_in_use(const Transfer& transfer) {
  MutexLock lock(mutex_);
  return mailbox_.in_flight(transfer);
}

// What only needs the last touch of others gets a moment for it. After that nobody may use this rank's buffers any
// more, so whoever still could is told: the group breaks.
void Communicator::Impl::close() {
  LOCKSTEP_FAULT_POINT("leave: begun");
  GroupRegistry::of_process().remove(*this);
  Farewell farewell;
  std::vector<std::shared_ptr<Operation::State>> orphans;
  for (;;) {
    MutexLock lock(mutex_);
    drive(/*help=*/true);
    const bool wait = std::any_of(pending_.begin(), pending_.end(),
                                  [](const Collective* collective) { return collective->missing() < 0; });
    if (wait && !waiting_.aborted() && farewell.may_wait()) {
      std::this_thread::yield();
      continue;
    }
    closed_ = true;
    orphans.swap(started_);
    break;
  }
  for (const auto& state : orphans) end_orphan(*state);
  LOCKSTEP_FAULT_POINT("leave: quiet");
  memory_.state(memory_.rank()).left.store(1, std::memory_order_seq_cst);
  LOCKSTEP_FAULT_POINT("leave: said");
  waiting_.notify(true);
}

}  // namespace lockstep::comm
