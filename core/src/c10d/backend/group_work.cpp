#include "c10d/backend/group_work.h"

#include <fmt/format.h>

#include "c10d/backend/future_completer.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/errors.h"

namespace lockstep {

GroupWork::GroupWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, bool settled)
    : Work(rank, type), outputs_(std::move(outputs)), settled_(settled) {
  completed_ = settled;
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  if (!is_settled()) {
    {
      MutexLock lock(settle_mutex_);
      ticket_.waits();
    }
    const bool own_deadline = timeout <= std::chrono::milliseconds::zero();
    finish_by(own_deadline ? deadline() : Deadline::after(timeout));
  }
  complete_future();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    MutexLock lock(settle_mutex_);
    future = future_;
  }
  // Another thread may be completing it just now; after wait() the caller expects it complete.
  if (future != nullptr) future->wait();
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

bool GroupWork::isCompleted() {
  if (!test()) return false;
  complete_future();
  return true;
}

bool GroupWork::isSuccess() const {
  return is_settled() && exception() == nullptr;
}

std::exception_ptr GroupWork::exception() const {
  std::exception_ptr error = Work::exception();
  if (error != nullptr) count_as_told();
  return error;
}

Status GroupWork::untold() const {
  MutexLock lock(settle_mutex_);
  return told_ ? Status() : status_;
}

void GroupWork::settle(const Status& status) {
  MutexLock lock(settle_mutex_);
  if (settled_.load(std::memory_order_relaxed)) return;
  status_ = status;
  std::exception_ptr error = status.ok() ? nullptr : make_exception(status);
  try {
    conclude(status);
  } catch (const std::exception& failure) {
    status_ = Status(ErrorCode::kInternal, failure.what());
    error = std::current_exception();
  }
  finish(error);
  ticket_.end(error == nullptr ? flight::Outcome::kDone : flight::Outcome::kFailed);
  failed_.store(error != nullptr, std::memory_order_relaxed);
  settled_.store(true, std::memory_order_release);
}

void GroupWork::record_as(const flight::Ticket& ticket) {
  MutexLock lock(settle_mutex_);
  ticket_ = ticket;
  if (!settled_.load(std::memory_order_relaxed)) return;
  ticket_.end(failed_.load(std::memory_order_relaxed) ? flight::Outcome::kFailed : flight::Outcome::kDone);
}

void GroupWork::settle_as_left() {
  settle(Status(ErrorCode::kAborted, "this rank left the group before the operation was done"));
}

int GroupWork::sourceRank() const {
  if (is_receive()) return source();
  throw ArgumentError(ErrorCode::kInvalidArgument, "sourceRank is for the work of irecv only");
}

void GroupWork::complete_future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    MutexLock lock(settle_mutex_);
    if (future_ == nullptr || std::exchange(future_taken_, true)) return;
    future = future_;
  }
  try {
    if (const std::exception_ptr error = exception()) {
      future->setError(error);
    } else {
      future->markCompleted(c10::IValue(outputs_));
    }
  } catch (const std::exception& error) {
    log::error(fmt::format("a callback of a work's future threw, and the callbacks after it were not called: {}",
                           error.what()));
  } catch (...) {
    log::error("a callback of a work's future threw, and the callbacks after it were not called");
  }
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool was_told = false;
  {
    MutexLock lock(settle_mutex_);
    if (future_ != nullptr) return future_;
    was_told = told_.exchange(true);  // the future will tell
    future = future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  }
  if (!test()) {
    auto self = c10::intrusive_ptr<GroupWork>::unsafe_reclaim_from_nonowning(this);
    try {
      const auto own_completer = completer();
      if (own_completer != nullptr && own_completer->add(std::move(self))) return future;
    } catch (...) {  // no thread will complete this future: drop it
      MutexLock lock(settle_mutex_);
      future_ = nullptr;
      told_ = was_told;
      throw;
    }
    give_up();
  }
  complete_future();
  return future;
}

}  // namespace lockstep
