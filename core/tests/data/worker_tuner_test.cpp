#include "data/worker_tuner.h"

#include <gtest/gtest.h>

namespace lockstep::data {
namespace {

using std::chrono::milliseconds;

// A machine where a worker takes `make` for a batch, with any number of workers, and the model `step`. The model has
// its own core.
int settle(WorkerTuner& tuner, milliseconds make, milliseconds step, int batches = 400) {
  for (int i = 0; i < batches; ++i) {
    const auto per_batch = make / tuner.workers();
    const auto wait = std::max(milliseconds(0), per_batch - step);
    const double busy =
        1.0 + static_cast<double>(make.count()) / static_cast<double>(std::max(per_batch, step).count());
    tuner.note({.make = make, .step = step, .wait = wait, .busy_cores = std::min(busy, 1.0 * tuner.most())});
  }
  return tuner.workers();
}

TEST(WorkerTuner, AddsWorkersUntilTheConsumerNeedNotWait) {
  WorkerTuner tuner(16);
  EXPECT_EQ(tuner.workers(), 1);
  EXPECT_EQ(settle(tuner, milliseconds(50), milliseconds(100)), 1);
  EXPECT_EQ(settle(tuner, milliseconds(400), milliseconds(100)), 4);
  EXPECT_EQ(settle(tuner, milliseconds(400), milliseconds(50)), 8);
}

TEST(WorkerTuner, TakesThoseAwayThatAreNotNeeded) {
  WorkerTuner tuner(16);
  settle(tuner, milliseconds(800), milliseconds(100));
  EXPECT_EQ(settle(tuner, milliseconds(150), milliseconds(100)), 2);
  EXPECT_EQ(settle(tuner, milliseconds(10), milliseconds(100)), 1);
}

TEST(WorkerTuner, NeverHasMoreThanCoresAndTakesNoneFromTheModel) {
  WorkerTuner many(4);
  EXPECT_LE(settle(many, milliseconds(1000), milliseconds(1)), 4);
  WorkerTuner busy(4);
  for (int i = 0; i < 100; ++i) {
    busy.note({.make = milliseconds(100), .step = milliseconds(10), .wait = milliseconds(90), .busy_cores = 3.9});
  }
  EXPECT_EQ(busy.workers(), 1);
  EXPECT_EQ(WorkerTuner(0).most(), 1);
}

}  // namespace
}  // namespace lockstep::data
