// Threads that make the batches of an epoch ahead of their consumer and deliver them in order.
//
// Batches are claimed in order, one worker each, and wait in a ring of `window` slots: batch b in slot b % window. A
// batch may be claimed once its slot is free, that is, b < delivered + window; that bounds the memory. A new epoch
// makes what is left of the old one worthless: `epoch_` counts them, and a batch that was claimed in an older one is
// thrown away.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

// What one loop goes through.
struct EpochPlan {
  std::int64_t epoch = 0;
  std::vector<std::int64_t> indices = {};  // of this rank's samples, in order
};

class BatchWorkers {
 public:
  // Makes a batch of the plan; called by all workers at once.
  using MakeBatch = std::function<Example(const EpochPlan& plan, std::int64_t batch)>;

  BatchWorkers(int threads, std::int64_t window, MakeBatch make);
  ~BatchWorkers();
  BatchWorkers(const BatchWorkers&) = delete;
  BatchWorkers& operator=(const BatchWorkers&) = delete;

  // Begins an epoch of `batches` batches; what is left of an earlier one is dropped.
  void start(std::shared_ptr<const EpochPlan> plan, std::int64_t batches) LOCKSTEP_EXCLUDES(mutex_);
  // The next batch of the epoch; blocks. Throws what making it threw; the batch after it can still be had.
  Example next() LOCKSTEP_EXCLUDES(mutex_);

 private:
  struct Slot {
    Example batch;
    std::exception_ptr error;
  };
  struct Claim {
    std::int64_t epoch;
    std::int64_t batch;
    std::shared_ptr<const EpochPlan> plan;
  };

  void work() LOCKSTEP_EXCLUDES(mutex_);
  std::optional<Claim> claim() LOCKSTEP_EXCLUDES(mutex_);
  void deliver(const Claim& claim, Slot slot) LOCKSTEP_EXCLUDES(mutex_);
  Slot make(const Claim& claim) const;

  const std::int64_t window_;
  const MakeBatch make_;

  Mutex mutex_;
  CondVar work_there_;   // a batch may be claimed, or it is time to stop
  CondVar batch_there_;  // a slot was filled
  std::shared_ptr<const EpochPlan> plan_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::optional<Slot>> slots_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t epoch_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t batches_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t claimed_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t delivered_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace lockstep::data
