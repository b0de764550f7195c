#include "local_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "base/fault_point.h"
#include "engine/core/drain_timeout.h"
#include "engine/core/error_text.h"
#include "shm/map_shared.h"

namespace lockstep::comm {
namespace {

// How long a failed call waits for ranks that are inside its tickets.
constexpr auto kTicketTime = std::chrono::milliseconds(200);

// From this size on it matters how inputs are copied into control memory.
constexpr std::size_t kJudgedCallBytes = 4096;

// When all ranks have posted, a rank does not take the others' tickets at once: they are about to begin them.
constexpr int kSpinsBeforeHelp = 30;

}  // namespace

LocalGroup::LocalGroup(const CommunicatorOptions& options, HandOver parts)
    : Group(options),
      memory_(rank_, group_size_, name_, roster_, arena_, std::move(parts)),
      waiting_(memory_, *this),
      mailbox_(memory_, waiting_),
      small_ways_(memory_, &RankState::small_ways),
      ring_(memory_, waiting_),
      reduce_stream_(memory_, waiting_, ring_),
      move_stream_(memory_, waiting_, ring_) {
  memory_.state(rank_).pid.store(static_cast<std::uint32_t>(getpid()), std::memory_order_release);
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

bool LocalGroup::slot_is_free() {
  const std::uint64_t next = posted_ + 1;
  if (next <= admitted_until_) return true;
  std::uint64_t completed = next;
  for (int rank = 0; rank < memory_.size(); ++rank) {
    completed = std::min(completed, memory_.state(rank).completed.load(std::memory_order_acquire));
  }
  admitted_until_ = completed + kRing;
  return next <= admitted_until_;
}

Status LocalGroup::begin(Collective& collective, const std::shared_ptr<LocalOperation>& operation) {
  if (closed_) return destroyed();
  if (waiting_.aborted()) return waiting_.abort_status();
  const bool now = admitted();
  collective.number(next_sequence());
  if (now) {
    LOCKSTEP_RETURN_IF_ERROR(post(collective));
    if (operation != nullptr) started_.push_back(operation);
  } else {
    queue_.push_back({&collective, operation});
  }
  if (operation != nullptr) set_busy(true);
  return {};
}

Status LocalGroup::post(Collective& collective) {
  ++posted_;
  pending_.push_back(&collective);
  Status posted = collective.post();
  if (!posted.ok()) {
    posted = posted.with_context(fmt::format("{} cannot take part in {}", me(), describe(collective)));
    waiting_.abort(posted.code(), posted.message());
    std::erase(pending_, &collective);
  }
  return posted;
}

void LocalGroup::post_queued() {
  while (!queue_.empty() && !waiting_.aborted() && slot_is_free()) {
    const Queued next = std::move(queue_.front());
    queue_.pop_front();
    if (next.operation != nullptr) started_.push_back(next.operation);
    (void)post(*next.collective);  // an error breaks the group
  }
}

void LocalGroup::progress_all(bool help) {
  for (Collective* collective : pending_) {
    if (!collective->over() && !waiting_.aborted()) collective->progress(help, scratch_);
  }
  if (mailbox_.has_work()) mailbox_.progress();
  remove_finished();
  post_queued();
}

void LocalGroup::remove_finished() {
  const auto over = [](const Collective* collective) { return collective->over(); };
  if (std::any_of(pending_.begin(), pending_.end(), over)) {
    std::erase_if(pending_, over);
  }
  const std::uint64_t completed = pending_.empty() ? posted_ : pending_.front()->sequence() - 1;
  std::atomic<std::uint64_t>& mine = memory_.state(memory_.rank()).completed;
  if (const std::uint64_t before = mine.load(std::memory_order_relaxed); before != completed) {
    mine.store(completed, std::memory_order_seq_cst);
    // A rank may be waiting for a free slot.
    if (completed / (kRing / 2) != before / (kRing / 2)) waiting_.notify(false);
  }
  std::vector<Operation::State*>& ended = mailbox_.ended();
  if (started_.empty() && ended.empty()) return;
  const auto end = [](LocalOperation& operation, const Status& status) {
    operation.status = status;
    operation.keep_alive.reset();
    operation.over.store(true, std::memory_order_release);
  };
  std::erase_if(started_, [&](const std::shared_ptr<LocalOperation>& operation) {
    if (!operation->collective->over()) return false;
    end(*operation, operation->collective->status());
    return true;
  });
  for (Operation::State* const one : ended) {
    auto& operation = static_cast<LocalOperation&>(*one);
    end(operation, operation.transfer.status);
    transfers_.erase(operation.place);
  }
  ended.clear();
  const auto is_started = [](const Queued& queued) { return queued.operation != nullptr; };
  const bool busy = !started_.empty() || !transfers_.empty() || std::any_of(queue_.begin(), queue_.end(), is_started);
  set_busy(busy && !waiting_.aborted());
}

void LocalGroup::forget(Collective& collective) {
  {
    MutexLock lock(mutex_);
    std::erase_if(queue_, [&](const Queued& queued) { return queued.collective == &collective; });
    if (!collective.posted()) return;  // no other rank knows of it
  }
  DrainTimeout drain(kTicketTime);
  const bool stuck = stuck_.load(std::memory_order_relaxed);
  const bool quiet = collective.quiesce(Deadline::after(stuck ? std::chrono::milliseconds(0) : drain.remaining()));
  MutexLock lock(mutex_);
  std::erase(pending_, &collective);
  if (quiet) return;
  stuck_.store(true, std::memory_order_relaxed);
  collective.abandon();
}

Status LocalGroup::finish_waiting(Collective& collective, Deadline deadline) {
  Watch watch;
  return wait_until(
      waiting_, deadline, [&] { return collective.missing(); },
      [&] {
        MutexLock lock(mutex_);
        if (!collective.over()) progress_all(true);
        return collective.over() || collective.wants_stream();
      },
      [&](bool expired) { return check(collective, expired, watch); });
}

// The usual case: nothing else is under way and the other ranks post within microseconds.
bool LocalGroup::finish_at_once(Collective& collective) {
  MutexLock lock(mutex_);
  if (pending_.size() != 1 || !collective.posted() || !mailbox_.idle()) return false;
  for (int spin = 0; spin < waiting_.spins() && !waiting_.aborted(); ++spin) {
    if (collective.progress(/*help=*/spin >= kSpinsBeforeHelp, scratch_)) {
      remove_finished();
      return true;
    }
    if (collective.wants_stream()) return false;
    waiting_.relax();
  }
  return false;
}

Status LocalGroup::run(const RequestView& request, Deadline deadline) {
  SmallCall small(memory_, request);
  if (small.fits()) {
    std::optional<Collective> collective;
    if (run_small(small, request, collective)) return {};
    if (collective) return finish(*collective, deadline);
  }
  return run_general(request.copy(), deadline);
}

Status LocalGroup::run_general(Request request, Deadline deadline) {
  Collective collective(memory_, waiting_, std::move(request), Caller::kBlocks);
  {
    MutexLock lock(mutex_);
    LOCKSTEP_RETURN_IF_ERROR(begin(collective, nullptr));
  }
  if (finish_at_once(collective)) return collective.status();
  return finish(collective, deadline);
}

Status LocalGroup::finish(Collective& collective, Deadline deadline) {
  Status status = finish_waiting(collective, deadline);
  if (status.ok() && collective.wants_stream()) status = stream(collective, deadline);
  if (!status.ok()) {
    forget(collective);
    return status;
  }
  return collective.status();
}

Status LocalGroup::stream(Collective& collective, Deadline deadline) {
  Watch watch;
  const StagingRing::WaitFor wait_for = [&](const StagingRing::Step& step) {
    return wait_until(
        waiting_, deadline, [] { return -1; }, step, [&](bool expired) { return check(collective, expired, watch); });
  };
  // Earlier operations first: every rank streams in the order of the sequence numbers.
  LOCKSTEP_RETURN_IF_ERROR(wait_for([&] {
    MutexLock lock(mutex_);
    if (pending_.front() == &collective) return true;
    progress_all(true);
    return pending_.front() == &collective;
  }));
  const Request& request = collective.request();
  Status status = ReduceStream::suits(request) ? reduce_stream_.run(request, wait_for)
                                               : move_stream_.run(request, collective.sequence(), wait_for);
  if (status.ok()) status = waiting_.broken_by_now();
  if (status.ok()) {
    MutexLock lock(mutex_);
    collective.finish({});
    remove_finished();
  }
  return status;
}

// The usual case touches only the posts and payloads of the ranks.
bool LocalGroup::run_small(SmallCall& call, const RequestView& request, std::optional<Collective>& collective) {
  MutexLock lock(mutex_);
  if (closed_ || waiting_.aborted() || !pending_.empty() || !admitted()) return false;
  const std::uint64_t sequence = posted_ = next_sequence();
  // For smaller inputs both ways cost the same, and reading the clock would cost more.
  const bool judged = call.bytes() >= kJudgedCallBytes;
  const CopyWay way = judged ? small_ways_.way(request) : CopyWay::kPlain;
  const bool large = call.bytes() > Communicator::kInlineBytes;
  if (large && !std::exchange(payloads_touched_, true)) populate(memory_.large_payloads());
  const auto started = judged ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  call.post(waiting_, sequence, way);
  bool agreed = true;
  int rank = 0;
  for (int spin = 0; rank < memory_.size() && spin <= waiting_.spins();) {
    const Post& post = memory_.post(rank, sequence);
    if (post.state.load(std::memory_order_acquire) < 2 * sequence) {
      ++spin;
      waiting_.relax();
      continue;
    }
    agreed = agreed && call.agrees(post);
    ++rank;
  }
  if (rank == memory_.size() && agreed) {
    call.fetch(scratch_);
    if (judged) small_ways_.record(request, started, call.bytes());
    remove_finished();
    return true;
  }
  // Still under the lock: otherwise remove_finished() could publish this number as completed.
  collective.emplace(memory_, waiting_, request.copy(), Caller::kBlocks);
  collective->number(sequence);
  collective->adopt_small();
  pending_.push_back(&*collective);
  return false;
}

void LocalGroup::progress() {
  MutexLock lock(mutex_);
  if (!pending_.empty() || !queue_.empty() || mailbox_.has_work()) progress_all(/*help=*/false);
}

bool LocalGroup::try_progress() {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  const std::size_t before = under_way();
  if (!closed_ && (!pending_.empty() || !queue_.empty() || mailbox_.has_work())) progress_all(/*help=*/false);
  return under_way() < before;
}

// Ends an operation that is under way when this rank leaves.
void LocalGroup::end_orphan(LocalOperation& operation) {
  const bool used = operation.collective != nullptr || mailbox_in_use(operation.transfer);
  if (used && !waiting_.aborted()) {
    const std::string what =
        operation.collective ? describe(*operation.collective) : comm::describe(operation.transfer, names());
    const std::string how = fmt::format("{} (pid {}) left the group with {} under way", me(), getpid(), what);
    waiting_.abort(ErrorCode::kPeerFailed, caused(waiting_.known_cause(memory_.rank()), how));
  }
  if (operation.collective) {
    forget(*operation.collective);
  } else {
    MutexLock lock(mutex_);
    mailbox_.withdraw(operation.transfer);
  }
  operation.status = {ErrorCode::kAborted,
                      "group '" + memory_.name() + "' was destroyed before this operation was over"};
  operation.over.store(true, std::memory_order_release);
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
    const bool wait = std::any_of(pending_.begin(), pending_.end(),
                                  [](const Collective* collective) { return collective->missing() < 0; });
    if (wait && !waiting_.aborted() && drain.may_wait()) {
      std::this_thread::yield();
      continue;
    }
    closed_ = true;
    orphans.swap(started_);
    for (const Queued& queued : queue_) {
      if (queued.operation != nullptr) orphans.push_back(queued.operation);
    }
    orphans.insert(orphans.end(), transfers_.begin(), transfers_.end());
    transfers_.clear();
    break;
  }
  for (const auto& state : orphans) end_orphan(*state);
  LOCKSTEP_FAULT_POINT("leave: quiet");
  memory_.state(memory_.rank()).left.store(1, std::memory_order_seq_cst);
  LOCKSTEP_FAULT_POINT("leave: said");
  waiting_.notify(true);
}

}  // namespace lockstep::comm
