// The files that `lockstep train` writes for TensorBoard, read by TensorBoard itself.
#ifdef LOCKSTEP_TENSORBOARD_PYTHON
#include <gtest/gtest.h>

#include <filesystem>

#include "nn/error_texts.h"
#include "train_program.h"

namespace lockstep::test {
namespace {

class TrainProgramParity : public TrainProgram {};

TEST_F(TrainProgramParity, TensorBoardShowsCurvesAndTimes) {
  const Finished finished = train({"--epochs", "1"}, 2);
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  Process reader(
      {LOCKSTEP_TENSORBOARD_PYTHON, LOCKSTEP_REPORT_SCRIPTS "/read_events.py", scratch_.path("run/tensorboard")});
  const Finished read = reader.finish(std::chrono::seconds(100));
  ASSERT_EQ(read.exit_code, 0) << read.err;
  expect_in(read.out, {"\"train/loss\": [[1, ", "\"train/lr\": [[1, ", "\"epoch/train_loss\": [[0, ",
                       "\"epoch/samples_per_second\": [[0, ", "\"epoch/test_accuracy\": [[0, ", "\"time/input\": [[0, ",
                       "\"time/compute\": [[0, ", "\"time/communication\": [[0, "});
}

// The newest checkpoint is lost, so the second epoch is trained again: each of the 12 steps is there once.
TEST_F(TrainProgramParity, TensorBoardShowsTheStepsOfAResumedTrainingOnce) {
  ASSERT_EQ(train({}).exit_code, 0);
  ASSERT_TRUE(std::filesystem::remove(scratch_.path("run/checkpoints/step-000000012.ckpt")));
  const Finished resumed = train({"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_in(resumed.out, {"resumed after step 6"});
  Process reader(
      {LOCKSTEP_TENSORBOARD_PYTHON, LOCKSTEP_REPORT_SCRIPTS "/read_events.py", scratch_.path("run/tensorboard")});
  const Finished read = reader.finish(std::chrono::seconds(100));
  ASSERT_EQ(read.exit_code, 0) << read.err;
  expect_in(read.out, {"\"train/loss\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]"});
}

}  // namespace
}  // namespace lockstep::test
#endif
