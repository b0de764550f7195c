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
  int note(const BatchTimes& times) {
    sum_.make += times.make;
    sum_.step += times.step;
    sum_.wait += times.wait;
    sum_.busy_cores += times.busy_cores;
    if (++batches_ == kBatchesBetween) {
      decide();
      batches_ = 0;
      sum_ = {};
    }
    return workers_;
  }

 private:
  void decide() {
    using Seconds = std::chrono::duration<double>;
    const double make = Seconds(sum_.make).count();
    const double step = Seconds(sum_.step).count();
    const double wait = Seconds(sum_.wait).count();
    const double free_cores = cores_ - sum_.busy_cores / kBatchesBetween;
    const bool starved = wait > 0.05 * (step + wait);
    // In the time of a step, the present workers make less than one batch.
    const bool too_few = make > workers_ * step;
    if (starved && too_few && workers_ < cores_ && free_cores >= 0.5) {
      ++workers_;
    } else if (!starved && workers_ > 1 && 1.1 * make < (workers_ - 1) * step) {
      --workers_;
    }
  }

  static constexpr int kBatchesBetween = 8;

  int cores_;  // the most workers
  int workers_ = 1;
  int batches_ = 0;
  BatchTimes sum_;
};

}  // namespace lockstep::data
