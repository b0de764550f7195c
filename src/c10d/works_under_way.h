// The works of a group that are not settled. The group keeps them, so that nothing depends on whether the caller does:
// results reach their tensors when somebody drives the group, and errors are told.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "c10d/group_work.h"
#include "lockstep/base/mutex.h"

namespace lockstep {

class WorksUnderWay {
 public:
  // How long a rank that leaves a group waits for collectives that it has started.
  static constexpr std::chrono::seconds kPartingTime{5};

  using Works = std::vector<GroupWorkPtr>;
  using Shared = std::shared_ptr<const Works>;  // each work counts one reference more, however many share it

  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // After close() it is not kept.
  void add(GroupWorkPtr work) LOCKSTEP_EXCLUDES(mutex_);
  // Settles those that are over and lets go of them. Called often; so where many messages wait, only now and then.
  void collect() LOCKSTEP_EXCLUDES(mutex_);
  // Lets go of those that are settled.
  void forget_settled() LOCKSTEP_EXCLUDES(mutex_);

  // What a barrier waits for: the collectives; of those before another barrier that alone. Null: nothing.
  Shared before_a_barrier() const LOCKSTEP_EXCLUDES(mutex_);
  // Lets go of all, which are the answer.
  Works close() LOCKSTEP_EXCLUDES(mutex_);

  // Of settled works: the first error that nobody else can be told of, as whoever started that work has let go of it.
  // It counts as told then.
  Status take_lost_error(const Works& works) LOCKSTEP_EXCLUDES(mutex_);
  // Of a work that nobody has asked how it ended: says so in the log. `what` names it. Of what broke the group only
  // once.
  void report_lost(const std::string& what, const Status& error);

  // Drives collectives until all are settled, `until`, or `stop` says so.
  void drain(Deadline until, const std::function<bool()>& stop) LOCKSTEP_EXCLUDES(mutex_);

 private:
  bool is_worth_looking_through_messages() const LOCKSTEP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  // In the order of their starts. Of collectives there are never many: the core has no place for more.
  Works collectives_ LOCKSTEP_GUARDED_BY(mutex_);
  Works messages_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t left_messages_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // when they were last looked through
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::atomic<std::size_t> count_{0};
  std::atomic<bool> break_reported_{false};
};

}  // namespace lockstep
