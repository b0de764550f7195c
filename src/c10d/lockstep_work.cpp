#include "c10d/lockstep_work.h"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>

#include <algorithm>

#include "c10d/future_completer.h"
#include "lockstep/c10d/errors.h"

namespace lockstep {
namespace {

void fulfil(const c10::intrusive_ptr<c10::ivalue::Future>& future, const std::exception_ptr& exception,
            const std::vector<at::Tensor>& outputs) {
  if (exception != nullptr) {
    future->setError(exception);
  } else {
    future->markCompleted(c10::IValue(outputs));
  }
}

}  // namespace

LockstepWork::LockstepWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
    : Work(rank, type), outputs_(std::move(outputs)), settled_(true) {
  completed_ = true;
}

LockstepWork::LockstepWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Pending pending)
    : Work(rank, type), outputs_(std::move(outputs)), pending_(std::move(pending)), settled_(false) {}

bool LockstepWork::wait(std::chrono::milliseconds timeout) {
  if (!settled_.load(std::memory_order_acquire)) {
    pending_.group->check_process();
    const bool own_deadline = timeout <= std::chrono::milliseconds::zero();
    settle(wait_for_operations(own_deadline ? pending_.deadline : Deadline::after(timeout)));
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

Status LockstepWork::wait_for_operations(Deadline deadline) {
  for (comm::Operation& operation : pending_.operations) LOCKSTEP_RETURN_IF_ERROR(operation.wait(deadline));
  return {};
}

bool LockstepWork::isCompleted() {
  if (settled_.load(std::memory_order_acquire)) return true;
  pending_.group->check_process();
  const bool over = std::all_of(pending_.operations.begin(), pending_.operations.end(),
                                [](comm::Operation& operation) { return operation.is_completed(); });
  if (!over && !pending_.deadline.expired()) return false;
  settle(wait_for_operations(pending_.deadline));
  return true;
}

void LockstepWork::give_up() {
  if (!isCompleted()) settle(Status(ErrorCode::kAborted, "this rank left the group before the operation was done"));
}

void LockstepWork::settle(const Status& status) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    MutexLock lock(settle_mutex_);
    if (settled_.load(std::memory_order_relaxed)) return;
    std::exception_ptr error;
    if (status.ok()) {
      try {
        copy_back(pending_.copies);
      } catch (...) {
        error = std::current_exception();
      }
    } else {
      error = make_exception(status);
    }
    pending_.copies.clear();
    if (pending_.record != nullptr) pending_.record->end();
    finish(error);
    settled_.store(true, std::memory_order_release);
    future = future_;
  }
  // Outside the lock: callbacks of the future may ask this work things.
  if (future != nullptr) fulfil(future, exception(), outputs_);
}

std::exception_ptr LockstepWork::make_exception(const Status& status) const {
  try {
    pending_.group->fail(status, pending_.operation, getSequencenumber());
  } catch (...) {
    return std::current_exception();
  }
}

bool LockstepWork::isSuccess() const {
  return settled_.load(std::memory_order_acquire) && Work::exception() == nullptr;
}

std::exception_ptr LockstepWork::exception() const {
  return Work::exception();
}

int LockstepWork::sourceRank() const {
  if (pending_.operations.empty() || (opType_ != c10d::OpType::RECV && opType_ != c10d::OpType::RECVANYSOURCE)) {
    throw ArgumentError(ErrorCode::kInvalidArgument, "sourceRank is for the work of irecv only");
  }
  return pending_.operations.front().source();
}

void LockstepWork::abort() {
  if (isCompleted()) return;
  if (const auto communicator = pending_.group->communicator()) {
    communicator->abort(fmt::format("{} aborted its {}", pending_.group->who(), pending_.operation));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> LockstepWork::getFuture() {
  if (!settled_.load(std::memory_order_acquire)) pending_.group->check_process();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    MutexLock lock(settle_mutex_);
    if (future_ != nullptr) return future_;
    future = future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (settled_.load(std::memory_order_relaxed)) {
      fulfil(future, exception(), outputs_);
      return future;
    }
  }
  auto self = c10::intrusive_ptr<LockstepWork>::unsafe_reclaim_from_nonowning(this);
  if (isCompleted()) return future;
  if (const auto completer = pending_.group->completer()) {
    completer->add(std::move(self));
  } else {
    give_up();
  }
  return future;
}

std::uint64_t LockstepWork::getSequencenumber() const {
  return pending_.operations.empty() ? 0 : pending_.operations.front().sequence();
}

}  // namespace lockstep
