// The works of a group that are not settled. The group keeps them, in case the caller drops them: later calls of the
// group still bring their results to the tensors, and report their errors.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "c10d/backend/group_work.h"
#include "lockstep/base/mutex.h"

namespace lockstep {

class WorksUnderWay {
 public:
  // How long a rank that leaves a group waits for collectives that it has started.
  static constexpr std::chrono::seconds kPartingTime{5};

  using Works = std::vector<GroupWorkPtr>;
  using Shared = std::shared_ptr<const Works>;  // copies of the pointer add no references to the works

  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // Does nothing after close().
  void add(GroupWorkPtr work) LOCKSTEP_EXCLUDES(mutex_);
  // Settles works that are over and drops them. Called often, so with many messages it looks at these only sometimes.
  void collect() LOCKSTEP_EXCLUDES(mutex_);
  // Drops those that are settled.
  void forget_settled() LOCKSTEP_EXCLUDES(mutex_);

  // The works that a barrier waits for: all collectives since the last barrier, and that barrier. Null: none.
  Shared before_a_barrier() const LOCKSTEP_EXCLUDES(mutex_);
  // Drops all works and returns them.
  Works close() LOCKSTEP_EXCLUDES(mutex_);

  // Returns the first error among those of the settled `works` that their callers have dropped: no caller can ask for
  // it any more. From now on it counts as told.
  Status take_lost_error(const Works& works) LOCKSTEP_EXCLUDES(mutex_);
  // Logs the error of a work that nobody asked for. `what` names the work. Errors that broke the group are logged once,
  // and not at all after count_break_as_told(): the program knows of it from another operation.
  void report_lost(const std::string& what, const Status& error);
  void count_break_as_told() const { break_reported_ = true; }

  // Makes progress on collectives until all are settled, `until` has passed, or `stop` returns true.
  void drain(Deadline until, const std::function<bool()>& stop) LOCKSTEP_EXCLUDES(mutex_);

 private:
  bool is_worth_looking_through_messages() const LOCKSTEP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  // In the order of their starts. There are few collectives: the engine limits those under way.
  Works collectives_ LOCKSTEP_GUARDED_BY(mutex_);
  Works messages_ LOCKSTEP_GUARDED_BY(mutex_);
  std::size_t left_messages_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // after they were last looked through
  bool closed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::atomic<std::size_t> count_{0};
  mutable std::atomic<bool> break_reported_{false};
};

}  // namespace lockstep
