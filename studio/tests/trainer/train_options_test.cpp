// What is wrong with a configuration beside single values: an error names the key, and where a path came from.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/config/schema.h"
#include "nn/error_texts.h"
#include "support/scratch_folder.h"
#include "trainer/command/command.h"

namespace lockstep::trainer_detail {
namespace {

class TrainOptions : public testing::Test {
 protected:
  // The error of a file with these lines and of options.
  std::string error_of_config(const std::string& lines, const std::vector<config::Option>& options = {}) const {
    scratch_.write("config.yaml", lines);
    TrainCommandOptions values;
    config::Schema schema;
    declare(values, schema);
    Status status = schema.read({.file = scratch_.path("config.yaml"), .options = options});
    if (status.ok()) status = check(values, schema);
    return std::string(status.message());
  }

  test::ScratchFolder scratch_;
};

TEST_F(TrainOptions, NameTheKeyAndTheLineOfPathsThatAreNotThere) {
  const std::string place = scratch_.path("config.yaml");
  test::expect_in(error_of_config("data:\n  train: /no/train\n  test: /no/test\nmodel:\n  weights: /no/weights\n"),
                  {"data.train: /no/train is not there (" + place + ":2:10; seen from ",
                   "data.test: /no/test is not there (" + place + ":3:9; seen from ",
                   "model.weights: /no/weights is not there (" + place + ":5:12; seen from "});
  const std::string overridden = error_of_config("data:\n  train: /no/train\n", {{"--train", "/no/other"}});
  test::expect_in(overridden, {"data.train: /no/other is not there (--train; seen from "});
  EXPECT_EQ(overridden.find("/no/train"), std::string::npos) << overridden;
}

TEST_F(TrainOptions, NameEveryValueThatIsWrong) {
  const std::string data = "data: {train: " + scratch_.path().native() + "}\n";
  test::expect_in(error_of_config("trainre:\n  epochs: 3\n"), {"trainre", "trainer"});
  test::expect_in(error_of_config(data, {{"--name", "mnist_net"}}), {"--name"});  // of several sections
  test::expect_in(error_of_config(data + "trainer:\n  patience: often\n  monitor: speed\n"),
                  {"config.yaml:", "trainer.patience: expected a whole number of at least 0", "found 'often'",
                   "trainer.monitor: expected one of accuracy, loss, found 'speed'"});
  test::expect_in(error_of_config(data, {{"--epochs", "ten"}, {"--lr", "fast"}}),
                  {"--epochs: expected a whole number of at least 0 that fits in 64 bits, found 'ten'",
                   "--lr: expected a number of at least 0, found 'fast'"});
  test::expect_in(error_of_config(data, {{"--transforms", "ToTenser"}}),
                  {"data.transforms", "no transform 'ToTenser'", "ToTensor"});
  test::expect_in(
      error_of_config(data, {{"--device", "nowhere"}, {"--model.options", "depth=3"}}),
      {"trainer.device: expected auto, cpu, cuda or cuda:NUMBER, found 'nowhere'", "model.options are for"});
}

TEST_F(TrainOptions, RefuseNumbersThatCanOnlyBeMistakes) {
  const std::string data = "data: {train: " + scratch_.path().native() + "}\n";
  test::expect_in(error_of_config(data, {{"--fake-size", "9000000000000000000"}}), {"--fake-size: ", "2147483648"});
  test::expect_in(error_of_config(data, {{"--fake-classes", "100000000000"}}), {"--fake-classes: ", "16777216"});
  test::expect_in(error_of_config(data, {{"--image-size", "1000000000"}}), {"--image-size: ", "65536"});
  test::expect_in(error_of_config(data, {{"--top-k", "2,5,2"}}), {"trainer.top_k: 2 is there twice"});
  EXPECT_EQ(error_of_config(data, {{"--top-k", "1,5"}}), "");
}

TEST_F(TrainOptions, TakeTransformsWithSeveralArgumentsAsAnOption) {
  const std::string data = "data: {train: " + scratch_.path().native() + "}\n";
  EXPECT_EQ(error_of_config(data, {{"--transforms", "RandomCrop(32, padding=4),ToTensor"}}), "");
  test::expect_in(error_of_config(data, {{"--transforms", "RandomCrop(32, pading=4),ToTensor"}}),
                  {"data.transforms", "pading"});
}

TEST_F(TrainOptions, RefuseAWarmUpThatTheScheduleWouldIgnore) {
  const std::string data = "data: {train: " + scratch_.path().native() + "}\n";
  EXPECT_EQ(error_of_config(data + "schedule: {name: cosine, warmup: 5}\n"), "");
  test::expect_in(error_of_config(data + "schedule: {name: one_cycle, warmup: 5}\n"),
                  {"schedule.warmup is not for schedule.name: one_cycle"});
}

TEST_F(TrainOptions, AskForTheMilestonesOfMultistep) {
  const std::string data = "data: {train: " + scratch_.path().native() + "}\n";
  EXPECT_EQ(error_of_config(data + "schedule: {name: multistep, milestones: [2]}\n"), "");
  test::expect_in(error_of_config(data + "schedule: {name: multistep}\n"), {"multistep needs schedule.milestones"});
}

TEST_F(TrainOptions, AskWhichMomentumIsMeantWithOneCycle) {
  const std::string data = "data: {train: " + scratch_.path().native() + "}\n";
  const std::string sgd = data + "optimizer: {momentum: 0.8}\n";
  const std::string adam = data + "optimizer: {name: adam, betas: [0.8, 0.99]}\n";
  EXPECT_EQ(error_of_config(data + "schedule: {name: one_cycle}\n"), "");
  EXPECT_EQ(error_of_config(sgd + "schedule: {name: cosine}\n"), "");
  test::expect_in(error_of_config(sgd + "schedule: {name: one_cycle}\n"),
                  {"optimizer.momentum: schedule.name: one_cycle moves", "schedule.cycle_momentum"});
  test::expect_in(error_of_config(adam + "schedule: {name: one_cycle}\n"), {"optimizer.betas: schedule.name"});
  for (const char* meant : {"true", "false"})
    EXPECT_EQ(error_of_config(sgd + "schedule: {name: one_cycle, cycle_momentum: " + meant + "}\n"), "") << meant;
}

}  // namespace
}  // namespace lockstep::trainer_detail
