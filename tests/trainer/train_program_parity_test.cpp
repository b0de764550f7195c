// The files that `lockstep train` writes for TensorBoard, read by TensorBoard itself.
#ifdef LOCKSTEP_TENSORBOARD_PYTHON
#include <gtest/gtest.h>

#include "nn/error_texts.h"
#include "train_program.h"

namespace lockstep::test {
namespace {

class TrainProgramParity : public TrainProgram {};

TEST_F(TrainProgramParity, TensorBoardShowsCurvesTimesWeightsAndSamples) {
  const Finished finished = train({"--epochs", "1"}, 2);
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  Process reader(
      {LOCKSTEP_TENSORBOARD_PYTHON, LOCKSTEP_REPORT_SCRIPTS "/read_events.py", scratch_.path("run/tensorboard")});
  const Finished read = reader.finish(std::chrono::seconds(100));
  ASSERT_EQ(read.exit_code, 0) << read.err;
  expect_in(read.out, {"\"train/loss\": [[1, ", "\"train/lr\": [[1, ", "\"epoch/train_loss\": [[0, ",
                       "\"epoch/samples_per_second\": [[0, ", "\"epoch/test_accuracy\": [[0, ", "\"time/input\": [[0, ",
                       "\"time/compute\": [[0, ", "\"time/communication\": [[0, ",
                       "\"weights/features.0.0.weight\": [{\"step\": 0, ", "\"worst/pictures\": [[0, ",
                       "\"worst/table\": [[0, "});
}

}  // namespace
}  // namespace lockstep::test
#endif
