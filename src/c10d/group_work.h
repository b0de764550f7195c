// What the works of this library's own backends have in common: the end that comes once, the future, and who has been
// told of an error.
//
// A work is *settled* once its results are where they belong, or its error is known. Its future is completed after
// that, as a step of its own, because callbacks run there and may take any time.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"

namespace lockstep {

class FutureCompleter;

class GroupWork : public c10d::Work {
 public:
  // Zero: until the operation's own deadline, which counts from its start. Running out of time breaks the group.
  bool wait(std::chrono::milliseconds timeout) final;
  // Also true once the operation's deadline has passed or the group broke: then with an error.
  bool isCompleted() final;
  bool isSuccess() const final;
  std::exception_ptr exception() const final;
  std::vector<at::Tensor> result() final { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() final;

  bool is_settled() const { return settled_.load(std::memory_order_acquire); }
  bool is_message() const;
  bool is_barrier() const { return opType_ == c10d::OpType::BARRIER; }
  // Helps it on and settles it if it is over or overdue; whether it is settled. Never waits, runs no callbacks.
  virtual bool advance() = 0;
  // The same of what is known to be over already.
  virtual bool collect() { return advance(); }
  // Settles it at the latest at this deadline.
  virtual void finish_by(Deadline deadline) = 0;
  // Settles it, with an error if it is not over: this rank has left the group.
  virtual void give_up() = 0;

  // Completes the future, if somebody has asked for it, and runs its callbacks. Once settled; only the first call
  // counts.
  void complete_future() LOCKSTEP_EXCLUDES(settle_mutex_);

  // The error of a settled work that nobody has been told of, and for which nobody asked for a future; else ok.
  Status untold() const LOCKSTEP_EXCLUDES(settle_mutex_);
  // That somebody has, or need not be.
  void count_as_told() const { told_ = true; }

 protected:
  // `settled`: work that is done.
  GroupWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, bool settled);

  // The first call counts.
  void settle(const Status& status) LOCKSTEP_EXCLUDES(settle_mutex_);
  // Called by it: brings the results to the outputs when `status` is ok. May throw.
  virtual void conclude(const Status& status) = 0;
  // What to throw for it.
  virtual std::exception_ptr make_exception(const Status& status) const = 0;
  // Null once the group was left.
  virtual std::shared_ptr<FutureCompleter> completer() = 0;
  virtual Deadline deadline() const = 0;

  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  const std::vector<at::Tensor> outputs_;
  std::atomic<bool> settled_;
  mutable std::atomic<bool> told_{false};
  mutable Mutex settle_mutex_;
  Status status_ LOCKSTEP_GUARDED_BY(settle_mutex_);
  c10::intrusive_ptr<c10::ivalue::Future> future_ LOCKSTEP_GUARDED_BY(settle_mutex_);
  bool future_taken_ LOCKSTEP_GUARDED_BY(settle_mutex_) = false;  // somebody completes it, or has
};

using GroupWorkPtr = c10::intrusive_ptr<GroupWork>;

}  // namespace lockstep
