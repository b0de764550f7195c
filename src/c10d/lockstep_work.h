// The c10d::Work of the CPU engine: one or more operations of the core that count as one.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "c10d/group_core.h"
#include "c10d/staging.h"
#include "lockstep/base/deadline.h"
#include "lockstep/comm/collective/communicator.h"

namespace lockstep {

class LockstepWork final : public c10d::Work {
 public:
  struct Pending {
    std::shared_ptr<GroupCore> group;
    const char* operation = "";
    std::vector<comm::Operation> operations;
    std::vector<CopyBack> copies;
    Deadline deadline = Deadline::never();
    std::shared_ptr<at::RecordFunction> record = nullptr;  // ends with the work
  };

  // Work that is done.
  LockstepWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs);
  // Work that was started.
  LockstepWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Pending pending);

  // Zero: until the operation's own deadline, which counts from its start. Running out of time breaks the group.
  bool wait(std::chrono::milliseconds timeout) override;
  // Also true once the operation's deadline has passed or the group broke: then with an error.
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override;

  // Ends work whose group was left.
  void give_up();

 private:
  void settle(const Status& status) LOCKSTEP_EXCLUDES(settle_mutex_);
  Status wait_for_operations(Deadline deadline);
  std::exception_ptr make_exception(const Status& status) const;

  const std::vector<at::Tensor> outputs_;
  Pending pending_;  // its copies are guarded by settle_mutex_, the rest is constant
  std::atomic<bool> settled_;
  Mutex settle_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_ LOCKSTEP_GUARDED_BY(settle_mutex_);
};

}  // namespace lockstep
