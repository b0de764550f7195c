// LocalGroup: calls that return once their operation is over.
#include <optional>
#include <utility>

#include "local_group.h"

namespace lockstep::comm {

Status LocalGroup::run(const RequestView& request, Deadline deadline) {
  SmallCall small(memory_, request);
  if (small.fits()) {
    std::optional<Collective> collective;
    if (run_small(small, request, collective)) return {};
    if (collective) return finish(*collective, deadline);
  }
  return run_general(request.copy(), deadline);
}

// The usual case touches only the posts and payloads of the ranks.
bool LocalGroup::run_small(SmallCall& call, const RequestView& request, std::optional<Collective>& collective) {
  MutexLock lock(mutex_);
  if (!is_open() || !collectives_.admits_small_call()) return false;
  const std::uint64_t sequence = next_sequence();
  collectives_.begin_small_call(sequence);
  if (call.run(waiting_, sequence, small_calls_)) {
    collectives_.end_small_call();
    return true;
  }
  // Still under the lock: otherwise another thread's progress could publish this number as completed.
  collective.emplace(memory_, waiting_, request.copy(), Caller::kBlocks);
  collective->number(sequence);
  collective->adopt_small();
  collectives_.adopt_small_call(*collective);
  return false;
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

bool LocalGroup::finish_at_once(Collective& collective) {
  MutexLock lock(mutex_);
  return mailbox_.idle() && collectives_.finish_at_once(collective);
}

Status LocalGroup::finish(Collective& collective, Deadline deadline) {
  Watch watch;
  Status status = finish_waiting(collective, deadline, watch);
  if (status.ok() && collective.wants_stream()) status = stream(collective, deadline, watch);
  if (!status.ok()) {
    forget(collective);
    return status;
  }
  return collective.status();
}

Status LocalGroup::finish_waiting(Collective& collective, Deadline deadline, Watch& watch) {
  return wait_until(
      waiting_, deadline, [&] { return collective.missing(); },
      [&] {
        MutexLock lock(mutex_);
        if (!collective.over()) progress_all(true);
        return collective.over() || collective.wants_stream();
      },
      [&](bool expired) { return check(collective, expired, watch); });
}

Status LocalGroup::stream(Collective& collective, Deadline deadline, Watch& watch) {
  watch.progressed = std::chrono::steady_clock::now();
  const StagingRing::WaitFor wait_for = [&](const StagingRing::Step& step) {
    return wait_until(
        waiting_, deadline, [] { return -1; }, step, [&](bool expired) { return check(collective, expired, watch); });
  };
  // Earlier operations first: every rank streams in the order of the sequence numbers.
  LOCKSTEP_RETURN_IF_ERROR(wait_for([&] {
    MutexLock lock(mutex_);
    if (!collectives_.is_oldest(collective)) progress_all(true);
    return collectives_.is_oldest(collective);
  }));
  const Request& request = collective.request();
  Status status = ReduceStream::suits(request) ? reduce_stream_.run(request, wait_for)
                                               : move_stream_.run(request, collective.sequence(), wait_for);
  if (status.ok()) status = waiting_.broken_by_now();
  if (status.ok()) {
    MutexLock lock(mutex_);
    collective.finish({});
    collectives_.remove_finished();
  }
  return status;
}

Status LocalGroup::run(Transfer transfer, Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (!is_open()) return why_not_open();
    mailbox_.start(transfer);
    update_busy();
  }
  Watch watch;
  Status status = wait_until(
      waiting_, deadline, [] { return -1; },
      [&] {
        MutexLock lock(mutex_);
        if (!transfer.over) progress_all(true);
        return transfer.over;
      },
      [&](bool expired) { return check(transfer, expired, watch); });
  if (status.ok()) return transfer.status;
  MutexLock lock(mutex_);
  mailbox_.withdraw(transfer);
  return status;
}

}  // namespace lockstep::comm
