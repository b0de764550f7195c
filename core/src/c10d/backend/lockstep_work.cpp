#include "c10d/backend/lockstep_work.h"

#include <algorithm>

#include "c10d/backend/future_completer.h"
#include "c10d/backend/group_errors.h"

namespace lockstep {

LockstepWork::LockstepWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
    : GroupWork(rank, type, std::move(outputs), /*settled=*/true) {}

LockstepWork::LockstepWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Pending pending)
    : GroupWork(rank, type, std::move(outputs), /*settled=*/false),
      pending_(std::move(pending)),
      earlier_(std::move(pending_.earlier)) {}

LockstepWork::~LockstepWork() {
  const Status error = untold();
  if (!error.ok()) pending_.group->report_lost(error, pending_.operation, getSequencenumber());
}

WorksUnderWay::Shared LockstepWork::earlier() const {
  MutexLock lock(earlier_mutex_);
  return earlier_;
}

bool LockstepWork::test() {
  if (is_settled()) return true;
  pending_.group->check_process();
  bool over = true;
  if (const WorksUnderWay::Shared works = earlier()) {
    for (const GroupWorkPtr& work : *works) over = work->test() && over;
  }
  over = over && std::all_of(pending_.operations.begin(), pending_.operations.end(),
                             [](comm::Operation& operation) { return operation.is_completed(); });
  if (!over && !pending_.deadline.expired()) return false;
  finish_by(pending_.deadline);
  return true;
}

bool LockstepWork::collect() {
  if (is_settled()) return true;
  bool over = std::all_of(pending_.operations.begin(), pending_.operations.end(),
                          [](const comm::Operation& operation) { return operation.is_over(); });
  if (const WorksUnderWay::Shared works = earlier()) {
    for (const GroupWorkPtr& work : *works) over = over && work->is_settled();
  }
  if (over) finish_by(pending_.deadline);
  return over;
}

void LockstepWork::finish_by(Deadline deadline) {
  if (is_settled()) return;
  pending_.group->check_process();
  settle(wait_for_operations(deadline));
}

Status LockstepWork::wait_for_operations(Deadline deadline) {
  const WorksUnderWay::Shared works = earlier();
  if (works != nullptr) {
    for (const GroupWorkPtr& work : *works) work->finish_by(deadline);
  }
  for (comm::Operation& operation : pending_.operations) LOCKSTEP_RETURN_IF_ERROR(operation.wait(deadline));
  return works == nullptr ? Status() : pending_.group->works().take_lost_error(*works);
}

void LockstepWork::give_up() {
  if (test()) return;
  const Status reason = pending_.group->reason_left();
  reason.ok() ? settle_as_left() : settle(reason);
}

void LockstepWork::conclude(const Status& status) {
  {
    MutexLock lock(earlier_mutex_);
    earlier_.reset();
  }
  if (const auto record = std::move(pending_.record)) record->end();
  const std::vector<CopyBack> copies = std::move(pending_.copies);
  if (status.ok()) copy_back(copies);
}

std::exception_ptr LockstepWork::make_exception(const Status& status) const {
  try {
    pending_.group->fail(status, pending_.operation, getSequencenumber());
  } catch (...) {
    return std::current_exception();
  }
}

std::shared_ptr<FutureCompleter> LockstepWork::completer() {
  return pending_.group->completer();
}

void LockstepWork::abort() {
  if (test()) return;
  if (const auto communicator = pending_.group->communicator()) {
    communicator->abort(aborted_by(pending_.group->who(), pending_.operation));
  }
}

std::uint64_t LockstepWork::getSequencenumber() const {
  return pending_.operations.empty() ? 0 : pending_.operations.front().sequence();
}

}  // namespace lockstep
