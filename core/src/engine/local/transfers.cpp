// Sends and receives of a LocalGroup: the calls around its Mailbox.
#include <utility>

#include "local_group.h"

namespace lockstep::comm {

Status LocalGroup::run(Transfer transfer, Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (closed_) return destroyed();
    if (waiting_.aborted()) return waiting_.abort_status();
    mailbox_.start(transfer);
  }
  Status status = wait_until(
      waiting_, deadline, [] { return -1; },
      [&] {
        MutexLock lock(mutex_);
        if (!transfer.over) progress_all(true);
        return transfer.over;
      },
      [&](bool expired) { return check(transfer, expired); });
  if (status.ok()) return transfer.status;
  MutexLock lock(mutex_);
  mailbox_.withdraw(transfer);
  return status;
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
  operation->transfer.operation = operation.get();
  operation->place = transfers_.insert(transfers_.end(), operation);
  mailbox_.start(operation->transfer);
  set_busy(true);
  progress_all(/*help=*/false);
  return operation;
}

// Ends a transfer that has failed: a message that comes for it later is not delivered.
Status LocalGroup::withdraw(LocalOperation& operation, Status status) {
  MutexLock lock(mutex_);
  if (operation.over.load(std::memory_order_relaxed)) return operation.status;
  mailbox_.withdraw(operation.transfer);
  operation.status = std::move(status);
  operation.keep_alive.reset();
  operation.over.store(true, std::memory_order_release);
  transfers_.erase(operation.place);
  set_busy(false);  // the group is broken
  return operation.status;
}

bool LocalGroup::try_receive(Transfer& transfer, MessageLook& look) {
  MutexLock lock(mutex_);
  return mailbox_.try_receive(transfer, look);
}

std::optional<MessageLook> LocalGroup::progress_messages() {
  MutexLock lock(mutex_);
  if (mailbox_.has_work()) {
    mailbox_.progress();
    remove_finished();
  }
  return mailbox_.has_unexpected() ? std::optional(mailbox_.look()) : std::nullopt;
}

bool LocalGroup::mailbox_in_use(const Transfer& transfer) {
  MutexLock lock(mutex_);
  return mailbox_.is_outgoing(transfer);
}

}  // namespace lockstep::comm
