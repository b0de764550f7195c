// LocalGroup: operations that were started, from their start to their end, and leaving the group.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/fault_point.h"
#include "engine/core/drain_timeout.h"
#include "engine/core/error_text.h"
#include "engine/core/timing.h"
#include "local_group.h"

namespace lockstep::comm {

Result<std::shared_ptr<Operation::State>> LocalGroup::start(Request request, KeepAlive keep_alive, Deadline admission) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto operation,
                            launch(std::move(request), std::move(keep_alive), Caller::kGoesOn, admission));
  return std::shared_ptr<Operation::State>(std::move(operation));
}

Result<std::shared_ptr<LocalOperation>> LocalGroup::launch(Request request, KeepAlive keep_alive, Caller caller,
                                                           Deadline admission) {
  auto operation = std::make_shared<LocalOperation>(shared_from_this());
  operation->keep_alive = std::move(keep_alive);
  operation->collective = std::make_unique<Collective>(memory_, waiting_, std::move(request), caller);
  LOCKSTEP_RETURN_IF_ERROR(post(*operation->collective, admission));
  MutexLock lock(mutex_);
  started_.push_back(operation);
  set_busy(true);
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
  if (closed_) return destroyed();
  if (waiting_.aborted()) return waiting_.abort_status();
  mailbox_.start(operation->transfer);
  started_.push_back(operation);
  set_busy(true);
  progress_all(/*help=*/false);
  return operation;
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
        [&](bool expired) {
          return operation.collective ? check(*operation.collective, expired, watch)
                                      : check(operation.transfer, expired);
        });
  }
  if (status.ok()) return operation.status;
  // The caller may now free its buffers.
  if (!operation.collective) return withdraw(operation, std::move(status));
  forget(*operation.collective);
  return status;
}

// Ends a transfer that has failed: a message that comes for it later is not delivered.
Status LocalGroup::withdraw(LocalOperation& operation, Status status) {
  MutexLock lock(mutex_);
  if (operation.over.load(std::memory_order_relaxed)) return operation.status;
  mailbox_.withdraw(operation.transfer);
  operation.status = std::move(status);
  operation.keep_alive.reset();
  operation.over.store(true, std::memory_order_release);
  std::erase_if(started_, [&](const auto& started) { return started.get() == &operation; });
  set_busy(false);  // the group is broken
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
    operation.watch.checked = watch.checked;
    watch = operation.watch;
  }
  (void)(operation.collective ? check(*operation.collective, /*expired=*/false, watch)
                              : check(operation.transfer, false));
  MutexLock lock(mutex_);
  operation.watch = watch;
}

void LocalGroup::progress_messages() {
  MutexLock lock(mutex_);
  if (mailbox_.has_work()) mailbox_.progress();
}

void LocalGroup::progress() {
  MutexLock lock(mutex_);
  if (!pending_.empty() || mailbox_.has_work()) progress_all(/*help=*/false);
}

bool LocalGroup::try_progress() {
  if (!mutex_.try_lock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  const std::size_t started = started_.size();
  if (!closed_ && (!pending_.empty() || mailbox_.has_work())) progress_all(/*help=*/false);
  return started_.size() < started;
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

bool LocalGroup::mailbox_in_use(const Transfer& transfer) {
  MutexLock lock(mutex_);
  return mailbox_.in_flight(transfer);
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
    break;
  }
  for (const auto& state : orphans) end_orphan(*state);
  LOCKSTEP_FAULT_POINT("leave: quiet");
  memory_.state(memory_.rank()).left.store(1, std::memory_order_seq_cst);
  LOCKSTEP_FAULT_POINT("leave: said");
  waiting_.notify(true);
}

}  // namespace lockstep::comm
