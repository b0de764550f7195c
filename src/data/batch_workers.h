// Threads that make the batches of an epoch ahead of their consumer.
//
// Batches are claimed in order, one worker each; finished ones wait until the consumer takes them. A batch may be
// claimed while fewer than the window (active workers times `prefetch`) are claimed and not yet taken: that bounds the
// memory. A new epoch makes what is left of the old one worthless: `generation_` counts them, and a batch that was
// claimed in an older one is thrown away.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "device_copy.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/data/data_loader.h"

namespace lockstep::data {

// What one loop goes through.
struct EpochPlan {
  std::int64_t epoch = 0;
  std::int64_t batches = 0;
  std::vector<std::int64_t> indices = {};  // of this rank's samples, in order
  std::vector<std::int64_t> keys = {};     // of each index; empty: the indices
};

struct MadeBatch {
  std::int64_t number = 0;
  CopiedBatch copied = {};
  std::exception_ptr error = nullptr;
  std::chrono::nanoseconds make_time{};
};

class BatchWorkers {
 public:
  // Makes a batch of the plan; called by all workers at once.
  using MakeBatch = std::function<CopiedBatch(const EpochPlan& plan, std::int64_t batch)>;

  // `threads` workers, of which set_active may make more. Throws DataError (kUnavailable) when the system refuses one.
  BatchWorkers(int threads, int prefetch, Delivery delivery, MakeBatch make);
  // Joins; a worker ends after the batch it is at.
  ~BatchWorkers();
  BatchWorkers(const BatchWorkers&) = delete;
  BatchWorkers& operator=(const BatchWorkers&) = delete;

  // Begins an epoch; what is left of an earlier one is dropped.
  void start(std::shared_ptr<const EpochPlan> plan) LOCKSTEP_EXCLUDES(mutex_);
  // The next batch of the epoch, or that which is ready first; blocks. To be called at most plan->batches times.
  MadeBatch next() LOCKSTEP_EXCLUDES(mutex_);
  // How many workers shall make batches; the others sleep. Answers how many do: fewer when the system refuses more
  // threads. For the consumer's thread.
  int set_active(int threads) LOCKSTEP_EXCLUDES(mutex_);

 private:
  struct Claim {
    std::int64_t generation;
    std::int64_t batch;
    std::shared_ptr<const EpochPlan> plan;
  };

  Status add_thread();
  void stop() LOCKSTEP_EXCLUDES(mutex_);
  void work(int worker) LOCKSTEP_EXCLUDES(mutex_);
  std::optional<Claim> claim(int worker) LOCKSTEP_EXCLUDES(mutex_);
  void deliver(const Claim& claim, MadeBatch made) LOCKSTEP_EXCLUDES(mutex_);
  MadeBatch make(const Claim& claim) const;
  bool may_claim() const LOCKSTEP_REQUIRES(mutex_);
  std::map<std::int64_t, MadeBatch>::iterator find_next() LOCKSTEP_REQUIRES(mutex_);

  // Throws in a fork, where there are no workers.
  void check_process() const;

  const Origin origin_;
  const int prefetch_;
  const Delivery delivery_;
  const MakeBatch make_;

  Mutex mutex_;
  CondVar work_there_;   // a batch may be claimed, a worker is to sleep, or it is time to stop
  CondVar wake_up_;      // sleeping workers: there is need of more, or it is time to stop
  CondVar batch_there_;  // a batch is made
  std::shared_ptr<const EpochPlan> plan_ LOCKSTEP_GUARDED_BY(mutex_);  // null before the first epoch
  std::map<std::int64_t, MadeBatch> made_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t generation_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t claimed_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t taken_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int active_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;  // grows in the consumer's thread alone
};

}  // namespace lockstep::data
