// The names that config.yaml may have: each is made, and one that was forgotten is an error, not another one.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/config/schema.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {
namespace {

std::vector<std::string> choices_of(const std::string& path) {
  TrainCommandOptions options;
  config::Schema schema;
  declare(options, schema);
  for (const config::Key& key : schema.keys()) {
    if (key.path() == path) return key.words();
  }
  return {};
}

std::vector<torch::Tensor> some_parameters() {
  return {torch::ones({2}, torch::requires_grad())};
}

// Of two classes; some models need other pictures, which they say.
void make_named_model(const std::string& name) {
  TrainCommandOptions options;
  options.model = name;
  options.image_size = 32;
  try {
    make_model(options, {nullptr, nullptr, {"ant", "bee"}}, torch::zeros({3, 32, 32}));
  } catch (const std::runtime_error&) {
  }
}

TEST(TrainNames, OfOptimizersAreMade) {
  const std::vector<std::string> names = choices_of("optimizer.name");
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) {
    TrainCommandOptions options;
    options.optimizer = name;
    EXPECT_NE(make_optimizer(options, some_parameters()), nullptr) << name;
    EXPECT_GT(state_factor(options), 0) << name;
  }
  TrainCommandOptions unknown;
  unknown.optimizer = "unknown";
  EXPECT_THROW(make_optimizer(unknown, some_parameters()), std::logic_error);
  EXPECT_THROW(state_factor(unknown), std::logic_error);
}

TEST(TrainNames, OfSchedulesAreMade) {
  const auto make = [](const std::string& name, std::int64_t warmup) {
    TrainCommandOptions options;
    options.schedule = name;
    options.warmup = warmup;
    const auto optimizer = make_optimizer(options, some_parameters());
    return make_schedule(options, *optimizer, /*steps=*/4) != nullptr;
  };
  const std::vector<std::string> names = choices_of("schedule.name");
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) {
    EXPECT_EQ(make(name, 0), name != "none") << name;
    EXPECT_TRUE(make(name, 1)) << name;
  }
  EXPECT_THROW(make("unknown", 0), std::logic_error);
}

TEST(TrainNames, OneCycleLeavesTheMomentumWhereItIsAskedTo) {
  for (const bool cycles : {true, false}) {
    TrainCommandOptions options;
    options.schedule = "one_cycle";
    options.momentum = 0.5;
    options.cycle_momentum = cycles;
    const auto optimizer = make_optimizer(options, some_parameters());
    const auto schedule = make_schedule(options, *optimizer, /*steps=*/4);
    const auto& group = static_cast<torch::optim::SGDOptions&>(optimizer->param_groups()[0].options());
    EXPECT_DOUBLE_EQ(group.momentum(), cycles ? 0.95 : 0.5);
  }
}

TEST(TrainNames, OfModelsAreMade) {
  const std::vector<std::string> names = choices_of("model.name");
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) EXPECT_NO_THROW(make_named_model(name)) << name;
  EXPECT_THROW(make_named_model("unknown"), std::logic_error);
}

}  // namespace
}  // namespace lockstep::trainer_detail
