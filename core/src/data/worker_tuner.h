// Decides how many workers a loader should have, from measured times. Pure: no clock, no threads.
#pragma once

#include <chrono>

namespace lockstep::data {

// Measurements of one batch.
struct BatchTimes {
  std::chrono::nanoseconds make{};  // the time of the worker that made it
  std::chrono::nanoseconds step{};  // the consumer's work before it asked for the batch
  std::chrono::nanoseconds wait{};  // how long the consumer then waited
  double busy_cores = 0;            // of this process, on average since the last batch
};

// Starts with one worker. After every few batches:
//   - one more, if the consumer waited more than a twentieth of the time, at least half a core is free, and the present
//     workers make batches more slowly than the consumer uses them;
//   - one less, if the consumer waited less than that, and the remaining workers would still make batches a tenth
//     faster than the consumer uses them.
class WorkerTuner {
 public:
  // At most one worker for each core.
  explicit WorkerTuner(int cores) : cores_(cores < 1 ? 1 : cores) {}

  int workers() const { return workers_; }
  int most() const { return cores_; }

  // The system refused so many workers: never asks for them again.
  void stay_below(int workers) { workers_ = cores_ = workers - 1; }
  // Adds the times of a batch, and returns the number of workers from now on.
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
