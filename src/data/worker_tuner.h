// How many workers a loader should have, judged from what its consumer and they measured. Pure: no clock, no threads.
#pragma once

#include <chrono>

namespace lockstep::data {

// Of one batch.
struct BatchTimes {
  std::chrono::nanoseconds make{};  // a worker's time for it
  std::chrono::nanoseconds step{};  // the consumer's own work before it asked for the batch
  std::chrono::nanoseconds wait{};  // what the consumer then waited
  double busy_cores = 0;            // of this process, on average since the batch before
};

// Starts with one worker. After every few batches:
//   - the consumer waited more than a twentieth of the time, and half a core is free, and the times say that more
//     workers would be used: one more;
//   - the consumer never waited, and one worker less would still make batches a tenth faster than they are used: one
//     less.
class WorkerTuner {
 public:
  // At most one worker a core.
  explicit WorkerTuner(int cores) : cores_(cores < 1 ? 1 : cores) {}

  int workers() const { return workers_; }
  int most() const { return cores_; }

  // So many workers cannot be had: never again asks for them.
  void stay_below(int workers) { workers_ = cores_ = workers - 1; }
  // The number of workers from now on.
  int note(const BatchTimes& times);

 private:
  void decide();

  static constexpr int kBatchesBetween = 8;

  int cores_;  // the most workers
  int workers_ = 1;
  int batches_ = 0;
  BatchTimes sum_;
};

}  // namespace lockstep::data
