// Threads that make the batches of an epoch ahead of their consumer.
//
// Workers claim batches in order, one at a time; finished batches wait until the consumer takes them. To bound the
// memory, at most (active workers) * `prefetch` batches are claimed and not yet taken. A new epoch drops the batches of
// the old one: `generation_` counts epochs, and a batch from an older one is thrown away.
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

// The batches of one loop.
struct EpochPlan {
  std::int64_t epoch = 0;
  std::int64_t batches = 0;
  std::vector<std::int64_t> indices = {};  // of this rank's samples, in order
  std::vector<std::int64_t> keys = {};     // the random key of each index; empty: the indices
};

struct MadeBatch {
  std::int64_t number = 0;
  CopiedBatch copied = {};
  std::exception_ptr error = nullptr;
  std::chrono::nanoseconds make_time{};
};

class BatchWorkers {
 public:
  // Makes a batch of the plan; several workers call it at once.
  using MakeBatch = std::function<CopiedBatch(const EpochPlan& plan, std::int64_t batch)>;

  // Starts `threads` workers; set_active may add more. Throws DataError (kUnavailable) when the system refuses one.
  BatchWorkers(int threads, int prefetch, Delivery delivery, MakeBatch make);
  // Joins the workers: each ends after its present batch.
  ~BatchWorkers();
  BatchWorkers(const BatchWorkers&) = delete;
  BatchWorkers& operator=(const BatchWorkers&) = delete;

  // Begins an epoch and drops the rest of the last one.
  void start(std::shared_ptr<const EpochPlan> plan) LOCKSTEP_EXCLUDES(mutex_);
  // Blocks for the next batch of the epoch (kOrdered) or the first that is ready. Call it at most plan->batches times.
  MadeBatch next() LOCKSTEP_EXCLUDES(mutex_);
  // Sets how many workers make batches; the others sleep. Returns how many do: fewer if the system refuses threads.
  // Call it in the consumer's thread.
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

  // Throws in a fork, which has no workers.
  void check_process() const;

  const Origin origin_;
  const int prefetch_;
  const Delivery delivery_;
  const MakeBatch make_;

  Mutex mutex_;
  CondVar work_there_;   // a batch may be claimed, a worker must sleep, or all must stop
  CondVar wake_up_;      // for sleeping workers: more are needed, or all must stop
  CondVar batch_there_;  // a batch is finished
  std::shared_ptr<const EpochPlan> plan_ LOCKSTEP_GUARDED_BY(mutex_);  // null before the first epoch
  std::map<std::int64_t, MadeBatch> made_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t generation_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t claimed_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t taken_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int active_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;  // only the consumer's thread changes it
};

}  // namespace lockstep::data
