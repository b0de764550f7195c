// Operations of a LocalGroup whose caller does something else meanwhile: how it starts them, tests them and waits.
#include <string>
#include <utility>

#include "engine/core/let_others_catch_up.h"
#include "engine/core/timing.h"
#include "local_group.h"

namespace lockstep::comm {

namespace {

// The caller's text of a refusal, which the collective may read later.
Communicator::KeepAlive keep_reason(Request& request) {
  const auto reason = std::make_shared<std::string>(static_cast<const char*>(request.input.data), request.input.bytes);
  request.input.data = reason->data();
  return reason;
}

}  // namespace

Result<std::shared_ptr<Operation::State>> LocalGroup::start(Request request, KeepAlive keep_alive) {
  if (request.kind == Kind::kRefusal) keep_alive = keep_reason(request);
  LOCKSTEP_ASSIGN_OR_RETURN(auto operation, launch(std::move(request), std::move(keep_alive), Caller::kGoesOn));
  let_others_catch_up(*this, [this] {
    MutexLock lock(mutex_);
    if (!queue_.empty()) progress_all(/*help=*/true);
    return queue_.empty() || waiting_.aborted();
  });
  return std::shared_ptr<Operation::State>(std::move(operation));
}

Result<std::shared_ptr<LocalOperation>> LocalGroup::launch(Request request, KeepAlive keep_alive, Caller caller) {
  auto operation = std::make_shared<LocalOperation>(shared_from_this());
  operation->keep_alive = std::move(keep_alive);
  operation->collective = std::make_unique<Collective>(memory_, waiting_, std::move(request), caller);
  MutexLock lock(mutex_);
  LOCKSTEP_RETURN_IF_ERROR(begin(*operation->collective, operation));
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

}  // namespace lockstep::comm
