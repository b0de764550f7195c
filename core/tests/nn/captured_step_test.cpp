// CapturedStep over a graph that counts. What CUDA makes of it is tested on a GPU (tests/gpu).
#include "lockstep/nn/captured_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <utility>

#include "lockstep/c10d/distributed.h"
#include "nn/error_texts.h"
#include "support/process_ranks.h"

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
    recorded = false;
    enqueue();
    recorded = true;
  }
  bool has_recording() const override { return recorded; }
  void drop() override { recorded = false; }
  void replay() override { calls += 'p'; }
  std::string& calls;
  bool recorded = false;
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
  step();
  EXPECT_EQ(calls, "rrcppprcpp") << "what is new is warmed up once";
}

// As by a group of NCCL that is destroyed.
TEST(CapturedStep, RecordsAgainWhatWasDropped) {
  std::string calls;
  auto graph = std::make_unique<CountingGraph>(calls);
  CountingGraph& dropped = *graph;
  CapturedStep step([] {}, std::move(graph), {.warm_up = 1});
  step();
  step();
  dropped.recorded = false;
  EXPECT_FALSE(step.is_captured());
  step();
  step();
  EXPECT_EQ(calls, "rcprcp");
  EXPECT_TRUE(step.is_captured());
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

// All ranks would wait in the repetition for one that has none.
TEST(CapturedStepMulti, IsRecordedOnAllRanksOrNone) {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard group;
    std::string calls;
    bool fails = true;
    const auto body = [&] { TORCH_CHECK(!fails || rank != 1 || calls.back() != 'c', "it waits"); };
    CapturedStep step(body, std::make_unique<CountingGraph>(calls), {.warm_up = 1});
    step();
    const std::string text = error_of([&] { step(); });
    expect_in(text, {rank == 1 ? "could not be recorded: it waits" : "could not be recorded on rank(s) 1"});
    EXPECT_EQ(calls, "rc");
    EXPECT_FALSE(step.is_captured());
    fails = false;
    step();
    EXPECT_EQ(calls, "rccp");
    CapturedStep alone([] {}, std::make_unique<CountingGraph>(calls), {.warm_up = 1, .together = false});
    if (rank == 0) {
      alone();
      alone();
    }
  });
}

// A group that only some ranks were in: the others repeat what they have, and wait for nobody.
TEST(CapturedStepMulti, IsRecordedAgainOnOneRankAlone) {
  run_processes(2, [](int rank) {
    const ProcessGroupGuard group;
    std::string calls;
    auto graph = std::make_unique<CountingGraph>(calls);
    CountingGraph& own = *graph;
    CapturedStep step([] {}, std::move(graph), {.warm_up = 1});
    step();
    step();
    if (rank == 0) own.drop();
    step();
    step();
    EXPECT_EQ(calls, rank == 0 ? "rcprcp" : "rcppp");
    step.reset();
    EXPECT_FALSE(own.recorded) << "its memory is given back";
    step();
    step();
    EXPECT_EQ(calls, (rank == 0 ? "rcprcp" : "rcppp") + std::string("rcp")) << "together again";
  });
}

TEST(CapturedStep, KeepsTheKindOfAnError) {
  std::string calls;
  const auto body = [&] { TORCH_CHECK_WITH(OutOfMemoryError, calls.back() != 'c', "no memory is left"); };
  CapturedStep step(body, std::make_unique<CountingGraph>(calls), {.warm_up = 1});
  step();
  EXPECT_THROW(step(), c10::OutOfMemoryError);
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
