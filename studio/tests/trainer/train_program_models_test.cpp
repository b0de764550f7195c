// Models of users' own in `lockstep train`: the shared object of docs/train.md, and those that are refused.
#include <gtest/gtest.h>
#include <torch/version.h>

#include "nn/error_texts.h"
#include "train_program.h"

namespace lockstep::test {
namespace {

class TrainProgramModelsMulti : public TrainProgram {
 protected:
  static std::vector<std::string> with_library(const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> options{"--model.name", "custom", "--shared-object",
                                     LOCKSTEP_MODEL_LIBRARIES "/lib" + name + ".so"};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }
  void expect_refused(const std::string& name, const std::vector<std::string>& more,
                      const std::vector<std::string>& parts) const {
    expect_error(with_library(name, more), 1, parts);
  }
};

TEST_F(TrainProgramModelsMulti, TrainsTheModelOfASharedObject) {
  const Finished first = train(with_library("documented_model", {"--model.options", "hidden=16", "--epochs", "1"}), 2);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  expect_in(first.out, {"epoch 1/1: test loss", "finished after 1 epoch, 3 steps"});
  const Finished resumed = train(with_library("documented_model", {"--model.options", "hidden=16", "--resume"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_in(resumed.out, {"finished after 2 epochs"});
  expect_refused("documented_model", {"--model.options", "hidden=17", "--resume"},
                 {"cannot resume", "body.1.weight is [16, 3072] in the file and [17, 3072] in the model"});
}

TEST_F(TrainProgramModelsMulti, SayWhyASharedObjectIsRefused) {
  expect_refused("other_libtorch", {},
                 {"model.shared_object", "built against LibTorch 1.13.1", "this program has " TORCH_VERSION, "again"});
  expect_refused("other_lockstep", {},
                 {"libother_lockstep.so was built against another release of Lockstep", "build it again"});
  expect_refused("missing_symbol", {},
                 {"model.shared_object: cannot load", "function_of_another_libtorch", "LibTorch " TORCH_VERSION});
  expect_refused("no_model", {}, {"libno_model.so has no lockstep_model_torch_version", "LOCKSTEP_MODEL"});
  expect_refused("documented_model", {},
                 {"libdocumented_model.so cannot make its model", "3 classes", "3 x 32 x 32", "model.options []"});
  expect_refused("documented_model", {"--model.options", "hidden=16", "--num-classes", "2"},
                 {"custom has 2 classes, but the data has 3 (circle ... square)", "set model.num_classes to 0"});
  EXPECT_FALSE(std::filesystem::exists(scratch_.path("run")));
}

}  // namespace
}  // namespace lockstep::test
