// Threads that make the batches of an epoch ahead of their consumer.
//
// Workers claim batches in order, one at a time; finished batches wait until the consumer takes them. To bound the
// memory, at most (active workers) * `prefetch` batches are claimed and not yet taken. A new epoch drops the batches of
// the old one: `generation_` counts epochs, and a batch from an older one is thrown away.
//
// With an iterable dataset, each worker has a stream of its own. It makes batches of this stream only, at most
// `prefetch` ahead. The consumer takes them from the streams in turns. A stream ends with an empty MadeBatch, and is
// then left out.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "batch_memory.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/data_loader.h"

namespace lockstep::data {

// Without batch and error: a stream has ended, or all of them.
struct MadeBatch {
  std::int64_t number = 0;
  CopiedBatch copied = {};
  std::exception_ptr error = nullptr;
  std::chrono::nanoseconds make_time{};

  bool is_end() const { return copied.batch == nullptr && error == nullptr; }
};

struct WorkerOptions {
  int threads = 1;  // at the beginning; set_active may add more
  int prefetch = 2;
  std::chrono::milliseconds timeout{0};  // of next(); 0: none
};

// What is to be made in one loop over a loader.
struct EpochPlan {
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

  std::int64_t epoch = 0;
  std::int64_t batches = 0;     // of an iterable dataset kUnknown
  std::int64_t batch_size = 1;  // without `ends`; the last batch may be smaller
  std::int64_t dataset_size = 0;
  std::vector<std::int64_t> indices = {};  // of this rank's samples, in order
  std::vector<std::int64_t> keys = {};     // the random key of each index; empty: the indices
  std::vector<std::size_t> ends = {};      // with a batch sampler: where each batch ends in `indices`
  // Only with an iterable dataset: one for each worker, which no other worker uses; without workers one. Stream
  // n % streams.size() gives batch n.
  std::vector<std::unique_ptr<BatchStream>> streams = {};

  std::span<const std::int64_t> indices_of(std::int64_t batch) const { return part_of(indices, batch); }
  std::span<const std::int64_t> keys_of(std::int64_t batch) const {
    return part_of(keys.empty() ? indices : keys, batch);
  }

 private:
  std::span<const std::int64_t> part_of(const std::vector<std::int64_t>& values, std::int64_t batch) const {
    const auto number = static_cast<std::size_t>(batch);
    const auto size = static_cast<std::size_t>(batch_size);
    const std::size_t first = ends.empty() ? number * size : number == 0 ? 0 : ends[number - 1];
    const std::size_t end = ends.empty() ? std::min(first + size, values.size()) : ends[number];
    return std::span(values).subspan(first, end - first);
  }
};

class BatchWorkers {
 public:
  // Makes a batch of the plan; several workers call it at once, but with batches of one stream only one. A CopiedBatch
  // without batch: the stream has ended.
  using MakeBatch = std::function<CopiedBatch(const EpochPlan& plan, std::int64_t batch)>;

  // Throws DataError (kUnavailable) when the system refuses a thread.
  BatchWorkers(WorkerOptions options, MakeBatch make);
  // Joins the workers: each ends after its present batch.
  ~BatchWorkers();
  BatchWorkers(const BatchWorkers&) = delete;
  BatchWorkers& operator=(const BatchWorkers&) = delete;

  // Begins an epoch and drops the rest of the last one. A plan with streams has one for each thread.
  void start(std::shared_ptr<const EpochPlan> plan) LOCKSTEP_EXCLUDES(mutex_);
  // Blocks for the next batch of the epoch. Call it at most plan->batches times;
  // with streams it returns the end once all have ended. Throws DataError (kTimeout); it may then be called again.
  MadeBatch next() LOCKSTEP_EXCLUDES(mutex_);
  // Sets how many workers make batches; the others sleep. Returns how many do: fewer if the system refuses threads.
  // Call it in the consumer's thread.
  int set_active(int threads) LOCKSTEP_EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  using Made = std::map<std::int64_t, MadeBatch>;  // by number
  using Sample = std::atomic<std::int64_t>;

  struct Claim {
    std::int64_t generation;
    std::int64_t batch;
    std::shared_ptr<const EpochPlan> plan;
  };
  // What a worker is doing.
  struct Making {
    std::optional<Claim> claim;
    Clock::time_point since;
  };
  struct Stream {
    std::int64_t claimed = 0;
    std::int64_t taken = 0;
    bool ended = false;    // its worker knows
    bool skipped = false;  // the consumer knows
  };

  Status add_thread() LOCKSTEP_EXCLUDES(mutex_);
  void stop() LOCKSTEP_EXCLUDES(mutex_);
  void work(int worker, Sample& sample) LOCKSTEP_EXCLUDES(mutex_);
  std::optional<Claim> claim(int worker) LOCKSTEP_EXCLUDES(mutex_);
  void deliver(int worker, const Claim& claim, MadeBatch made) LOCKSTEP_EXCLUDES(mutex_);
  MadeBatch make(const Claim& claim) const;
  bool may_claim(int worker) const LOCKSTEP_REQUIRES(mutex_);
  std::int64_t claim_number(int worker) LOCKSTEP_REQUIRES(mutex_);
  MadeBatch take(Made::iterator found) LOCKSTEP_REQUIRES(mutex_);
  bool all_ended() const LOCKSTEP_REQUIRES(mutex_);
  std::int64_t wanted() const LOCKSTEP_REQUIRES(mutex_);
  void next_turn() LOCKSTEP_REQUIRES(mutex_);
  std::string describe_wait() const LOCKSTEP_REQUIRES(mutex_);

  // Throws in a fork, which has no workers.
  void check_process() const;

  const Origin origin_;
  const WorkerOptions options_;
  const MakeBatch make_;

  Mutex mutex_;
  CondVar work_there_;   // a batch may be claimed, a worker must sleep, or all must stop
  CondVar wake_up_;      // for sleeping workers: more are needed, or all must stop
  CondVar batch_there_;  // a batch is finished
  std::shared_ptr<const EpochPlan> plan_ LOCKSTEP_GUARDED_BY(mutex_);  // null before the first epoch
  Made made_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t generation_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t claimed_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t taken_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::vector<Stream> streams_ LOCKSTEP_GUARDED_BY(mutex_);  // of the plan
  std::size_t turn_ LOCKSTEP_GUARDED_BY(mutex_) = 0;         // the stream that the consumer takes from next
  std::vector<Making> making_ LOCKSTEP_GUARDED_BY(mutex_);   // of each thread
  int active_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Of each thread: the last note_sample() since it began its batch. Only the consumer's thread changes the list.
  std::vector<std::unique_ptr<Sample>> samples_;
  std::vector<std::jthread> threads_;  // only the consumer's thread changes it
};

}  // namespace lockstep::data
