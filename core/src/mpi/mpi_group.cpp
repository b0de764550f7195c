#include "mpi/mpi_group.h"

#include <utility>

#include "c10d/backend/future_completer.h"
#include "c10d/backend/group_errors.h"
#include "mpi/mpi_runtime.h"

namespace lockstep {
namespace {

// How long a rank that leaves waits to learn whether the others have refused the same calls.
constexpr std::chrono::seconds kSettleTime{1};

}  // namespace

MpiGroup::MpiGroup(MPI_Comm communicator, std::string who, int group_size, std::unique_ptr<Refusals> refusals)
    : who_(std::move(who)), group_size_(group_size), communicator_(communicator), refusals_(std::move(refusals)) {}

MpiGroup::~MpiGroup() {
  leave();
}

Status MpiGroup::error() const {
  MutexLock lock(mutex_);
  return error_;
}

Status MpiGroup::health() const {
  if (!origin_.is_this_process()) return fork_of(who_);
  MutexLock lock(mutex_);
  if (!error_.ok()) return {ErrorCode::kAborted, "the group is broken since " + error_.message()};
  if (left_) return left_group();
  return {};
}

void MpiGroup::break_with(const Status& error) {
  {
    MutexLock lock(mutex_);
    if (error_.ok()) error_ = error;
  }
  MpiRuntime::of_process().give_up_finalising();
}

std::shared_ptr<FutureCompleter> MpiGroup::completer() {
  MutexLock lock(mutex_);
  if (completer_ == nullptr && !left_)
    completer_ = std::shared_ptr<FutureCompleter>(new FutureCompleter, LeakInForks());
  return completer_;
}

void MpiGroup::leave() {
  if (!origin_.is_this_process()) return;
  works_.drain(Deadline::after(WorksUnderWay::kPartingTime), [this] { return !health().ok(); });
  std::shared_ptr<FutureCompleter> completer;
  {
    MutexLock lock(mutex_);
    if (left_) return;
    left_ = true;
    completer = std::move(completer_);
    completer_ = nullptr;
  }
  works_.collect();
  const WorksUnderWay::Works unfinished = works_.close();
  const Status settled = refusals_->settle(collectives_, Deadline::after(kSettleTime));
  if (!settled.ok()) break_with(settled);
  for (const GroupWorkPtr& work : unfinished) work->give_up();
  if (completer != nullptr) completer->stop();
  MpiRuntime& runtime = MpiRuntime::of_process();
  {
    MutexLock lock(runtime.mutex());
    // Not with operations under way: freeing the communicator would wait for other ranks.
    if (requests_ == 0 && error().ok() && runtime.is_usable()) MPI_Comm_free(&communicator_);
  }
  runtime.leave_group();
}

}  // namespace lockstep
