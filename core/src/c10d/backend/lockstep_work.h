// The c10d::Work of the CPU engine: one or more of its operations that count as one.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <vector>

#include "c10d/backend/group_core.h"
#include "c10d/backend/group_work.h"
#include "c10d/backend/staging.h"
#include "lockstep/engine/communicator.h"

namespace lockstep {

class LockstepWork final : public GroupWork {
 public:
  struct Pending {
    std::shared_ptr<GroupCore> group;
    const char* operation = "";
    std::vector<comm::Operation> operations;
    std::vector<CopyBack> copies;
    Deadline deadline = Deadline::never();
    std::shared_ptr<at::RecordFunction> record = nullptr;  // ends with the work
    WorksUnderWay::Shared earlier = nullptr;               // of a barrier: works that must be settled first
  };

  // For an operation that is done.
  LockstepWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs);
  // For operations that were started.
  LockstepWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Pending pending);
  ~LockstepWork() override;

  bool test() override;
  bool collect() override;
  void finish_by(Deadline deadline) override;
  void give_up() override;
  void abort() override;
  std::uint64_t getSequencenumber() const override;

 private:
  // A receive was started: blocking ones return no work.
  int source() const override { return pending_.operations.front().source(); }
  void conclude(const Status& status) override;
  std::exception_ptr make_exception(const Status& status) const override;
  std::shared_ptr<FutureCompleter> completer() override;
  Deadline deadline() const override { return pending_.deadline; }
  Status wait_for_operations(Deadline deadline) LOCKSTEP_EXCLUDES(earlier_mutex_);
  WorksUnderWay::Shared earlier() const LOCKSTEP_EXCLUDES(earlier_mutex_);

  Pending pending_;  // conclude() takes copies and record, the rest is constant
  mutable Mutex earlier_mutex_;
  WorksUnderWay::Shared earlier_ LOCKSTEP_GUARDED_BY(earlier_mutex_);  // of pending_; null once settled
};

}  // namespace lockstep
