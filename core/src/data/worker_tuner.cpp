#include "worker_tuner.h"

namespace lockstep::data {

int WorkerTuner::note(const BatchTimes& times) {
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

void WorkerTuner::decide() {
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

}  // namespace lockstep::data
