#include "mpi/mpi_work.h"

#include <fmt/format.h>
#include <sched.h>

#include <thread>
#include <utility>

#include "c10d/backend/group_errors.h"
#include "lockstep/c10d/errors.h"
#include "mpi/mpi_runtime.h"

namespace lockstep {
namespace {

// Other ranks are usually not so late.
constexpr std::chrono::milliseconds kPatience{300};

// Short waits spin and yield the core to other threads; long ones sleep.
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
    : GroupWork(rank, type, std::move(outputs), /*settled=*/true) {}

MpiWork::MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Pending pending)
    : GroupWork(rank, type, std::move(outputs), /*settled=*/false),
      group_(pending.group),
      operation_(pending.operation),
      sequence_(pending.sequence),
      place_(pending.place),
      deadline_(pending.deadline),
      patience_(Deadline::after(kPatience)),
      pending_(std::move(pending)) {}

MpiWork::~MpiWork() {
  if (const Status error = untold(); !error.ok()) group_->works().report_lost(name(), error);
}

std::string MpiWork::name() const {
  return fmt::format("{}, {}", group_->who(), describe());
}

void MpiWork::finish_by(Deadline deadline) {
  for (Backoff backoff; !settle_if_done(); backoff.pause()) {
    if (const Status health = group_->health(); !health.ok()) {
      settle(health);
    } else if (deadline.expired()) {
      time_out();
    } else if (patience_.expired()) {
      look_for_refusals();
    }
  }
}

void MpiWork::look_for_refusals(bool now) {
  const Status refused = group_->refusals().look(group_->collectives(), now);
  if (refused.ok()) return;
  settle(refused);
  group_->break_with(refused.with_context(describe()));
}

bool MpiWork::settle_if_done() {
  if (is_settled()) return true;
  Status status;
  {
    MutexLock lock(pending_mutex_);
    bool all_done = false;
    status = test_all(all_done);
    if (status.ok() && !all_done) return false;
  }
  settle(status);
  // A message of the wrong size was received nevertheless, and concerns no other rank. A barrier only repeats the error
  // of an earlier work.
  const bool harmless = is_receive() || is_barrier() ? status.code() == ErrorCode::kMismatch : false;
  if (!status.ok() && !harmless) group_->break_with(status.with_context(describe()));
  return true;
}

Status MpiWork::test_all(bool& all_done) {
  bool earlier_done = true;
  if (pending_.earlier != nullptr) {
    for (const GroupWorkPtr& work : *pending_.earlier) earlier_done = work->test() && earlier_done;
  }
  LOCKSTEP_RETURN_IF_ERROR(test_requests(all_done));
  all_done = all_done && earlier_done;
  return all_done && pending_.earlier != nullptr ? group_->works().take_lost_error(*pending_.earlier) : Status();
}

Status MpiWork::test_requests(bool& all_done) {
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
    if (done != 0 || !tested.ok()) group_->end_request();
    if (is_receive() && tested.code() == ErrorCode::kMismatch) {
      return {ErrorCode::kMismatch, fmt::format("expected a message of {} bytes, that of rank {} has more",
                                                outputs().front().nbytes(), status.MPI_SOURCE)};
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

// MPI itself reports messages that are too long, but not those that are too short.
Status MpiWork::check_received(const MPI_Status& status) const {
  MPI_Count bytes = 0;
  LOCKSTEP_RETURN_IF_ERROR(mpi_status(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x"));
  const auto expected = static_cast<MPI_Count>(outputs().front().nbytes());
  if (bytes == expected) return {};
  return {ErrorCode::kMismatch,
          fmt::format("expected a message of {} bytes, that of rank {} has {}", expected, status.MPI_SOURCE, bytes)};
}

void MpiWork::time_out() {
  look_for_refusals(/*now=*/true);
  if (is_settled()) return;
  const Status status(
      ErrorCode::kTimeout,
      "not done in time; some rank has not made the matching call, is slow, or is gone. This breaks the "
      "group");
  settle(status);
  group_->break_with(Status(ErrorCode::kTimeout, fmt::format("{} timed out", describe())));
}

bool MpiWork::test() {
  if (settle_if_done()) return true;
  if (!group_->error().ok()) {
    settle(group_->health());
  } else if (deadline_.expired()) {
    time_out();
  } else if (patience_.expired()) {
    look_for_refusals();
  }
  return is_settled();
}

void MpiWork::give_up() {
  if (!settle_if_done()) settle_as_left();
}

void MpiWork::conclude(const Status& status) {
  Pending pending;
  {
    MutexLock lock(pending_mutex_);
    pending = std::exchange(pending_, {});
  }
  if (status.ok()) {
    for (const auto& finisher : pending.finishers) finisher();
  } else {
    // MPI may still read and write there.
    MpiRuntime::of_process().keep_for_ever(std::move(pending.kept), std::move(pending.layouts));
  }
}

std::exception_ptr MpiWork::make_exception(const Status& status) const {
  try {
    throw_status(status, name());
  } catch (...) {
    return std::current_exception();
  }
}

void MpiWork::abort() {
  if (!test()) {
    group_->break_with(Status(ErrorCode::kAborted, aborted_by(group_->who(), operation_)));
  }
}

}  // namespace lockstep
