#include "mpi/mpi_work.h"

#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <sched.h>

#include <thread>

#include "lockstep/c10d/errors.h"
#include "mpi/mpi_runtime.h"

namespace lockstep {
namespace {

// Short waits spin, giving the core to whoever wants it; long ones sleep.
class Backoff {
 public:
  void pause() {
    if (++rounds_ < kSpins) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  static constexpr int kSpins = 20000;
  int rounds_ = 0;
};

}  // namespace

MpiWork::MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
    : Work(rank, type), outputs_(std::move(outputs)), settled_(true) {
  completed_ = true;
}

MpiWork::MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Pending pending)
    : Work(rank, type),
      outputs_(std::move(outputs)),
      group_(pending.group),
      operation_(pending.operation),
      sequence_(pending.sequence),
      deadline_(pending.deadline),
      pending_(std::move(pending)) {}

bool MpiWork::wait(std::chrono::milliseconds timeout) {
  const bool own_deadline = timeout <= std::chrono::milliseconds::zero();
  const Deadline deadline = own_deadline ? deadline_ : Deadline::after(timeout);
  for (Backoff backoff; !progress(); backoff.pause()) {
    if (const Status health = group_->health(); !health.ok()) {
      settle(health);
    } else if (deadline.expired()) {
      time_out();
    }
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

bool MpiWork::isCompleted() {
  complete_if_due();
  return is_settled();
}

bool MpiWork::progress() {
  if (is_settled()) return true;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  Status status;
  {
    MutexLock lock(mutex_);
    if (is_settled()) return true;
    bool all_done = false;
    status = test(all_done);
    if (status.ok() && !all_done) return false;
    future = settle_locked(status);
  }
  // Outside the lock: callbacks of the future may ask this work things.
  fulfil(future);
  // A message of the wrong size has been received all the same, and concerns nobody else.
  const bool wrong_message = is_receive() && status.code() == ErrorCode::kMismatch;
  if (!status.ok() && !wrong_message) group_->break_with(status.with_context(operation_));
  return true;
}

Status MpiWork::test(bool& all_done) {
  MpiRuntime& runtime = MpiRuntime::of_process();
  MutexLock lock(runtime.mutex());
  if (!runtime.is_usable()) return {ErrorCode::kAborted, "MPI was finalised before the operation was done"};
  all_done = true;
  for (MPI_Request& request : pending_.requests) {
    if (request == MPI_REQUEST_NULL) continue;
    int done = 0;
    MPI_Status status;
    status.MPI_SOURCE = -1;
    const Status tested = mpi_status(MPI_Test(&request, &done, &status), "MPI_Test");
    if (is_receive() && tested.code() == ErrorCode::kMismatch) {
      return {ErrorCode::kMismatch, fmt::format("expected a message of {} bytes, that of rank {} has more",
                                                outputs_.front().nbytes(), status.MPI_SOURCE)};
    }
    LOCKSTEP_RETURN_IF_ERROR(tested);
    all_done = all_done && done != 0;
    if (done != 0 && is_receive()) {
      source_ = status.MPI_SOURCE;
      return check_received(status);
    }
  }
  return {};
}

// MPI itself objects to longer messages only.
Status MpiWork::check_received(const MPI_Status& status) const {
  MPI_Count bytes = 0;
  LOCKSTEP_RETURN_IF_ERROR(mpi_status(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x"));
  const auto expected = static_cast<MPI_Count>(outputs_.front().nbytes());
  if (bytes == expected) return {};
  return {ErrorCode::kMismatch,
          fmt::format("expected a message of {} bytes, that of rank {} has {}", expected, status.MPI_SOURCE, bytes)};
}

void MpiWork::time_out() {
  const Status status(
      ErrorCode::kTimeout,
      "not done in time; some rank has not made the matching call, is slow, or is gone. This breaks the "
      "group");
  settle(status);
  group_->break_with(Status(ErrorCode::kTimeout, fmt::format("{} timed out", operation_)));
}

void MpiWork::complete_if_due() {
  if (progress()) return;
  if (!group_->error().ok()) {
    settle(group_->health());
  } else if (deadline_.expired()) {
    time_out();
  }
}

void MpiWork::give_up() {
  if (!progress()) settle(Status(ErrorCode::kAborted, "this rank left the group before the operation was done"));
}

void MpiWork::settle(const Status& status) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    MutexLock lock(mutex_);
    if (is_settled()) return;
    future = settle_locked(status);
  }
  fulfil(future);
}

c10::intrusive_ptr<c10::ivalue::Future> MpiWork::settle_locked(const Status& status) {
  std::exception_ptr error;
  if (status.ok()) {
    try {
      for (const auto& finisher : pending_.finishers) finisher();
    } catch (...) {
      error = std::current_exception();
    }
  } else {
    error = make_exception(status);
    // MPI may still write there.
    MpiRuntime::of_process().keep_for_ever(std::move(pending_.kept));
  }
  pending_ = {};
  finish(error);
  settled_.store(true, std::memory_order_release);
  return future_;
}

void MpiWork::fulfil(const c10::intrusive_ptr<c10::ivalue::Future>& future) const {
  if (future == nullptr) return;
  if (const std::exception_ptr error = exception()) {
    future->setError(error);
  } else {
    future->markCompleted(c10::IValue(outputs_));
  }
}

std::exception_ptr MpiWork::make_exception(const Status& status) const {
  try {
    throw_status(status, fmt::format("{}, {} #{}", group_->who(), operation_, sequence_));
  } catch (...) {
    return std::current_exception();
  }
}

bool MpiWork::isSuccess() const {
  return is_settled() && exception() == nullptr;
}

int MpiWork::sourceRank() const {
  if (!is_receive()) {
    throw ArgumentError(ErrorCode::kInvalidArgument, "sourceRank is for the work of irecv only");
  }
  return source_;
}

void MpiWork::abort() {
  if (!isCompleted()) {
    group_->break_with(Status(ErrorCode::kAborted, fmt::format("{} aborted its {}", group_->who(), operation_)));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> MpiWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool settled = false;
  {
    MutexLock lock(mutex_);
    if (future_ != nullptr) return future_;
    future = future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    settled = is_settled();
  }
  if (settled) {
    fulfil(future);
  } else {
    group_->start_polling();
  }
  return future;
}

}  // namespace lockstep
