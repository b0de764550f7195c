// CapturedStep over a graph that counts. What CUDA makes of it is tested on a GPU (tests/gpu).
#include "lockstep/nn/captured_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <utility>

#include "nn/error_texts.h"

namespace lockstep::test {
namespace {

struct CountingGraph final : DeviceGraph {
  explicit CountingGraph(std::string& calls) : calls(calls) {}
  void run(const Enqueue& enqueue) override {
    calls += 'r';
    enqueue();
  }
  void capture(const Enqueue& enqueue) override {
    calls += 'c';
    enqueue();
  }
  void replay() override { calls += 'p'; }
  std::string& calls;
};

TEST(CapturedStep, IsWarmedUpThenRecordedThenRepeated) {
  std::string calls;
  int runs = 0;
  CapturedStep step([&] { ++runs; }, std::make_unique<CountingGraph>(calls), {.warm_up = 2});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(step.is_captured(), i > 2);
    step();
  }
  EXPECT_EQ(calls, "rrcppp") << "the call that records also does the step";
  EXPECT_EQ(runs, 3);
  step.reset();
  EXPECT_FALSE(step.is_captured());
  step();
  step();
  EXPECT_EQ(calls, "rrcpppcpp");
}

TEST(CapturedStep, RunsAsItIsOnTheProcessor) {
  int runs = 0;
  CapturedStep step([&] { ++runs; }, {.device = torch::kCPU});
  for (int i = 0; i < 6; ++i) step();
  EXPECT_EQ(runs, 6);
  EXPECT_FALSE(step.is_captured());
}

TEST(CapturedStep, SaysWhatAStepMustKeepTo) {
  std::string calls;
  bool waits = true;
  const auto body = [&] {
    TORCH_CHECK(!waits || calls.back() != 'c', "operation not permitted when stream is capturing");
  };
  CapturedStep step(body, std::make_unique<CountingGraph>(calls), {.warm_up = 1});
  step();
  expect_in(error_of([&] { step(); }), {"could not be recorded: operation not permitted", "must not wait for the GPU"});
  EXPECT_FALSE(step.is_captured());
  waits = false;
  step();
  EXPECT_EQ(calls, "rccp");
}

TEST(CapturedStep, PassesOnTheErrorsOfItsWarmUp) {
  std::string calls;
  bool fails = true;
  const auto body = [&] { TORCH_CHECK_VALUE(!fails, "no such label"); };
  CapturedStep step(body, std::make_unique<CountingGraph>(calls), {.warm_up = 1});
  EXPECT_EQ(error_of([&] { step(); }).substr(0, 13), "no such label");
  fails = false;
  step();
  step();
  EXPECT_EQ(calls, "rrcp") << "a step that failed does not count";
}

TEST(CapturedStep, RefusesWhatCannotWork) {
  std::string calls;
  const auto graph = [&] { return std::make_unique<CountingGraph>(calls); };
  expect_in(error_of([&] { CapturedStep step({}, graph()); }), {"expected a function"});
  expect_in(error_of([&] { CapturedStep step([] {}, graph(), {.warm_up = 0}); }),
            {"warm_up must be at least 1, got 0"});
  expect_in(error_of([&] { CapturedStep step([] {}, std::unique_ptr<DeviceGraph>()); }), {"got null"});
  expect_in(error_of([&] { CapturedStep step([] {}); }), {"name the device"});
}

}  // namespace
}  // namespace lockstep::test
