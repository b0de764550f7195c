// What the works of this library's own backends have in common: they settle once, have a future, and remember whether
// anybody was told of their error.
//
// A work is *settled* once its results are in its outputs, or its error is known. Completing its future is a later,
// separate step, because that runs callbacks, which may take any time.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "flight/recorder.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"

namespace lockstep {

class FutureCompleter;

inline bool is_receive(c10d::OpType type) {
  return type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE;
}
inline bool is_message(c10d::OpType type) {
  return type == c10d::OpType::SEND || is_receive(type);
}

class GroupWork : public c10d::Work {
 public:
  // Zero: until the operation's own deadline, which counts from its start. A timeout breaks the group.
  bool wait(std::chrono::milliseconds timeout) final;
  // Also true, with an error, once the operation's deadline has passed or the group is broken.
  bool isCompleted() final;
  bool isSuccess() const final;
  std::exception_ptr exception() const final;
  std::vector<at::Tensor> result() final { return outputs_; }
  // Throws unless this is the work of a receive.
  int sourceRank() const final;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() final;

  bool is_settled() const { return settled_.load(std::memory_order_acquire); }
  bool is_message() const { return lockstep::is_message(opType_); }
  bool is_receive() const { return lockstep::is_receive(opType_); }
  bool is_barrier() const { return opType_ == c10d::OpType::BARRIER; }
  // Makes some progress; settles the work if it is over or overdue. Returns whether it is settled. Never waits, runs no
  // callbacks.
  virtual bool test() = 0;
  // Settles the work if it is known to be over already; may skip the progress.
  virtual bool collect() { return test(); }
  // Waits until the work is settled, at the latest at this deadline.
  virtual void finish_by(Deadline deadline) = 0;
  // Settles it now, with an error if it is not over: this rank has left the group.
  virtual void give_up() = 0;

  // Completes the future, if somebody has asked for it, and runs its callbacks. Only for settled works; only the first
  // call counts.
  void complete_future() LOCKSTEP_EXCLUDES(settle_mutex_);

  // Its entry in the flight recorder, which this work ends.
  void record_as(const flight::Ticket& ticket) LOCKSTEP_EXCLUDES(settle_mutex_);

  // The error of a settled work, if nobody was told of it and nobody asked for its future; else ok.
  Status untold() const LOCKSTEP_EXCLUDES(settle_mutex_);
  // Whether there is one. Takes no lock, so it may be called with any.
  bool has_untold_error() const { return is_settled() && failed_.load(std::memory_order_relaxed) && !told_; }
  // Somebody was told of the error, or need not be.
  void count_as_told() const { told_ = true; }

 protected:
  // `settled`: the work is done already.
  GroupWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, bool settled);

  // Only the first call counts.
  void settle(const Status& status) LOCKSTEP_EXCLUDES(settle_mutex_);
  // Settles the work of an operation that is not over when this rank leaves the group.
  void settle_as_left() LOCKSTEP_EXCLUDES(settle_mutex_);
  // Called by settle(): moves the results to the outputs when `status` is ok. May throw.
  virtual void conclude(const Status& status) = 0;
  // The exception for `status`.
  virtual std::exception_ptr make_exception(const Status& status) const = 0;
  // Null once the group was left.
  virtual std::shared_ptr<FutureCompleter> completer() = 0;
  virtual Deadline deadline() const = 0;
  // The rank that sent what this receive got.
  virtual int source() const = 0;

  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  const std::vector<at::Tensor> outputs_;
  std::atomic<bool> settled_;
  std::atomic<bool> failed_{false};  // final once settled
  mutable std::atomic<bool> told_{false};
  mutable Mutex settle_mutex_;
  Status status_ LOCKSTEP_GUARDED_BY(settle_mutex_);
  flight::Ticket ticket_ LOCKSTEP_GUARDED_BY(settle_mutex_);
  c10::intrusive_ptr<c10::ivalue::Future> future_ LOCKSTEP_GUARDED_BY(settle_mutex_);
  bool future_taken_ LOCKSTEP_GUARDED_BY(settle_mutex_) = false;  // a thread completes it, or has done so
};

using GroupWorkPtr = c10::intrusive_ptr<GroupWork>;

}  // namespace lockstep
