// Loaders when the system refuses threads.
#include <gtest/gtest.h>

#include <iostream>
#include <numeric>

#include "data/batch_workers.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"
#include "support/thread_limit.h"

namespace lockstep::data {
namespace {

using testing::ExitedWithCode;

class SomeNumbers : public Dataset {
 public:
  std::int64_t size() const override { return 12; }
  Example get(std::int64_t index) const override { return {torch::tensor(index), torch::tensor(-index)}; }
};

// Ends the child process of a test: writes the error to stderr, and exits with 0 if `right`.
[[noreturn]] void leave(bool right, const std::string& what) {
  std::cerr << what << std::endl;
  std::_Exit(right ? 0 : 1);
}

[[noreturn]] void make_loader(int threads_left) {
  test::refuse_threads(threads_left);
  try {
    const DataLoader loader(SomeNumbers(), {.num_workers = 4, .rank = 0, .world_size = 1});
    leave(false, "no error");
  } catch (const DataError& error) {
    leave(error.code() == ErrorCode::kUnavailable, error.what());
  }
}

TEST(DataThreadsFault, ALoaderWhoseWorkersCannotBeMadeIsAnError) {
  EXPECT_EXIT(make_loader(0), ExitedWithCode(0), "worker 1 of 4.*cannot start a thread.*pids limit");
  EXPECT_EXIT(make_loader(2), ExitedWithCode(0), "worker 3 of 4.*cannot start a thread");
}

// The loader continues when kAutoWorkers cannot get more threads.
[[noreturn]] void add_workers() {
  test::refuse_threads(2);
  BatchWorkers workers({.threads = 1}, [](const EpochPlan&, std::int64_t batch) { return CopiedBatch{hold(batch)}; });
  bool right = workers.set_active(5) == 2 && workers.set_active(1) == 1 && workers.set_active(2) == 2;
  workers.start(std::make_shared<const EpochPlan>(EpochPlan{.batches = 20}));
  for (std::int64_t batch = 0; batch < 20; ++batch) {
    const MadeBatch made = workers.next();
    right = right && dynamic_cast<BatchHolder<std::int64_t>&>(*made.copied.batch).batch() == batch;
  }
  leave(right, "done");
}

TEST(DataThreadsFault, ALoaderGoesOnWithTheWorkersThatItHas) {
  EXPECT_EXIT(add_workers(), ExitedWithCode(0), "goes on with 2 workers(.|\n)*done");
}

}  // namespace
}  // namespace lockstep::data
