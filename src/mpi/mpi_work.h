// The c10d::Work of backend mpi: one or more requests of MPI that count as one. There is no progress thread: requests
// move on inside wait() and isCompleted() of any work, inside later calls of the group, and, once a future was asked
// for, in a thread of the group.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "lockstep/base/deadline.h"
#include "mpi/mpi_group.h"

namespace lockstep {

class MpiWork final : public c10d::Work {
 public:
  struct Pending {
    std::shared_ptr<MpiGroup> group;
    const char* operation = "";
    std::uint64_t sequence = 0;
    std::vector<MPI_Request> requests = {};
    std::vector<at::Tensor> kept = {};                      // what MPI reads and writes
    std::vector<std::shared_ptr<const void>> layouts = {};  // counts and offsets that MPI reads
    std::vector<std::function<void()>> finishers = {};      // from MPI's memory to the outputs
    Deadline deadline = Deadline::never();
  };

  // Work that is done.
  MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs);
  // Work that was started.
  MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Pending pending);

  // Zero: until the operation's own deadline, which counts from its start. Running out of time breaks the group.
  bool wait(std::chrono::milliseconds timeout) override;
  // True also for work that is past its deadline or whose group broke: then wait() throws.
  bool isCompleted() override;
  bool isSuccess() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

  bool is_settled() const { return settled_.load(std::memory_order_acquire); }
  // Done, or past its deadline, or of a broken group: then it ends.
  void complete_if_due();
  // Ends work whose group was left.
  void give_up();

 private:
  bool is_receive() const { return opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE; }
  // Settles when the requests are done or one has failed; answers whether the work is settled.
  bool progress() LOCKSTEP_EXCLUDES(mutex_);
  Status test(bool& all_done) LOCKSTEP_REQUIRES(mutex_);
  Status check_received(const MPI_Status& status) const;
  void time_out();
  void settle(const Status& status) LOCKSTEP_EXCLUDES(mutex_);
  c10::intrusive_ptr<c10::ivalue::Future> settle_locked(const Status& status) LOCKSTEP_REQUIRES(mutex_);
  void fulfil(const c10::intrusive_ptr<c10::ivalue::Future>& future) const;
  std::exception_ptr make_exception(const Status& status) const;

  const std::vector<at::Tensor> outputs_;
  const std::shared_ptr<MpiGroup> group_;
  const char* const operation_ = "";
  const std::uint64_t sequence_ = 0;
  const Deadline deadline_ = Deadline::never();
  std::atomic<bool> settled_{false};
  std::atomic<int> source_{-1};
  Mutex mutex_;
  Pending pending_ LOCKSTEP_GUARDED_BY(mutex_);
  c10::intrusive_ptr<c10::ivalue::Future> future_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
