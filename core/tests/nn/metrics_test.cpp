// What metrics do with wrong samples and with ranks that disagree. Their numbers: tests/parity/metrics_parity_test.cpp.
#include "lockstep/nn/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/c10d/distributed.h"
#include "nn/error_texts.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;

Tensor integers(std::vector<std::int64_t> values) {
  return torch::tensor(values, torch::kLong);
}

// Three ranks with 5, 2 and no samples: the mean of their means would be wrong.
TEST(Average, IsExactOverUnevenRanks) {
  Average first;
  first.add(3.0, 4.0);
  first.add(1.0);
  Average second;
  second.add(0.0, 2.0);
  const Average third;
  const Average all(first.packed() + second.packed() + third.packed());
  EXPECT_EQ(all.value(), 4.0 / 7.0);
  EXPECT_EQ(all.count(), 7.0);
  first.merge(second);
  EXPECT_EQ(first.value(), all.value());
  EXPECT_EQ(first.compute(), all.value());
  EXPECT_TRUE(std::isnan(third.value()));
}

TEST(Average, CountsLargeNumbersExactly) {
  Average average;
  average.add(16777217.0, 33554433.0);  // more than float could hold
  EXPECT_EQ(Average(average.packed()).sum(), 16777217.0);
}

TEST(Metrics, ArgumentsAreChecked) {
  expect_in(error_of([] { Accuracy(std::vector<std::int64_t>()); }), {"Accuracy", "[]"});
  expect_in(error_of([] { Accuracy({1, 0}); }), {"Accuracy", "[1, 0]"});
  expect_in(error_of([] { ConfusionMatrix(0); }), {"ConfusionMatrix", "num_classes", "0"});
}

TEST(Metrics, WrongSamplesAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Accuracy accuracy({1, 3});
  const auto error = [&](const Tensor& scores, const Tensor& labels) {
    return error_of([&] { accuracy.update(scores, labels); });
  };
  expect_in(error(torch::zeros({3, 4}), integers({0, 1, 4})), {"Accuracy", "labels[2] is 4", "expected 0 to 3"});
  expect_in(error(torch::zeros({2, 4}), integers({0, -100})), {"labels[1] is -100"});
  expect_in(error(torch::tensor({{0.0, 1.0, 2.0}, {0.0, nan, 1.0}}), integers({0, 1})), {"sample 1", "NaN"});
  expect_in(error(torch::zeros({2, 2}), integers({0, 1})), {"top 3 of 2 classes"});
  expect_in(error(torch::zeros({2, 4}), integers({0})), {"labels {2}", "[1]"});
  expect_in(error(torch::zeros({2, 4}), torch::zeros({2})), {"integers", "labels", "Float"});
  expect_in(error(torch::zeros({2, 4}, torch::kLong), integers({0, 1})), {"floating-point", "Long"});
  expect_in(error(torch::zeros({4}), integers({0, 1, 2, 3})), {"{samples, classes}", "[4]"});
  expect_in(error(Tensor(), integers({0})), {"undefined"});
  // The first of them stays until reset().
  expect_in(error_of([&] { accuracy.compute(); }), {"labels[2] is 4", "reset()"});
  accuracy.reset();
  expect_in(error_of([&] { accuracy.compute(); }), {"Accuracy: no rank has a sample"});
  accuracy.update(torch::zeros({2, 4}), integers({0, 3}));
  expect_in(error(torch::zeros({2, 5}), integers({0, 1})), {"5 classes", "4 before"});
}

TEST(Metrics, WrongSamplesOfOtherMetricsAreNamed) {
  ConfusionMatrix confusion(3);
  expect_in(error_of([&] { confusion.update(integers({0, 3}), integers({0, 1})); }), {"predictions[1] is 3"});
  expect_in(error_of([&] { confusion.update(integers({0, 1}), integers({-1, 1})); }), {"labels[0] is -1"});
  expect_in(error_of([&] { confusion.update(torch::zeros({2, 4}), integers({0, 1})); }), {"{samples, 3}", "[2, 4]"});
  expect_in(error_of([&] { confusion.compute(); }), {"predictions[1] is 3"});
}

// A copy, such as one of the best epoch, counts on its own.
TEST(Metrics, CopiesAreIndependent) {
  Accuracy accuracy;
  ConfusionMatrix confusion(2);
  const auto update = [](Accuracy& a, ConfusionMatrix& c, std::int64_t label) {
    a.update(torch::tensor({{0.1, 0.9}}), integers({label}));
    c.update(integers({1}), integers({label}));
  };
  update(accuracy, confusion, 1);
  Accuracy other_accuracy = accuracy;
  ConfusionMatrix other_confusion = confusion;
  update(other_accuracy, other_confusion, 0);
  EXPECT_EQ(accuracy.compute()[0], 1.0);
  EXPECT_TRUE(torch::equal(confusion.compute(), torch::tensor({{0, 0}, {0, 1}})));
  EXPECT_EQ(other_accuracy.compute()[0], 0.5);
  EXPECT_TRUE(torch::equal(other_confusion.compute(), torch::tensor({{0, 1}, {0, 1}})));
}

class MetricsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MetricsMulti, testing::Values(2, 3));

// The last rank goes wrong in a way that it alone can see. All ranks end with a reason.
TEST_P(MetricsMulti, AllRanksLearnOfOnesWrongSamples) {
  run_processes(GetParam(), [](int rank) {
    const ProcessGroupGuard group;
    const bool wrong = rank == group.world_size() - 1;
    const std::string who = "rank(s) " + std::to_string(group.world_size() - 1) + " cannot take part";
    Accuracy accuracy;
    ConfusionMatrix confusion(2);
    const Tensor labels = integers({0, wrong ? 2 : 1});
    for (const auto& update : std::vector<std::function<void()>>{[&] { accuracy.update(torch::eye(2), labels); },
                                                                 [&] { confusion.update(torch::eye(2), labels); }}) {
      EXPECT_EQ(error_of(update) == "no error", !wrong);
    }
    for (const auto& compute :
         std::vector<std::function<void()>>{[&] { accuracy.compute(); }, [&] { confusion.compute(); }}) {
      const std::string error = error_of(compute);
      expect_in(error, {"labels[1] is 2, expected 0 to 1"});
      if (!wrong) expect_in(error, {who});
    }
    accuracy.reset();
    if (!wrong) accuracy.update(torch::eye(2), labels);
    EXPECT_EQ(accuracy.compute()[0], 1.0);
  });
}

TEST_P(MetricsMulti, RanksThatDisagreeOrHaveNothing) {
  run_processes(GetParam(), [](int rank) {
    const ProcessGroupGuard group;
    const bool last = rank == group.world_size() - 1;
    const auto error = [](const auto& metric) { return error_of([&] { metric.compute(); }); };
    expect_in(error(ConfusionMatrix(last ? 4 : 3)), {"ConfusionMatrix of 4 classes on rank(s)", "of 3 classes on"});
    expect_in(error(last ? Accuracy({1, 5}) : Accuracy()), {"top 1, 5 on rank(s)", "top 1 on"});
    expect_in(last ? error(Accuracy()) : error(Average()), {"Average on rank(s) 0", "Accuracy of top 1 on rank(s)"});
    Accuracy other_scores;
    const std::int64_t classes = last ? 7 : 5;
    other_scores.update(torch::rand({2, classes}), integers({0, 1}));
    expect_in(error(other_scores), {"different numbers of classes", "5", "7"});
    expect_in(error(Average()), {"Average: no rank has a sample"});
    expect_in(error(Accuracy()), {"Accuracy: no rank has a sample"});
    expect_in(error(ConfusionMatrix(3)), {"ConfusionMatrix: no rank has a sample"});
  });
}

// A group of some ranks: the others do not take part.
TEST(MetricsGroupMulti, CountsTheRanksOfAGroup) {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard world;
    const ProcessGroup pair = new_group({0, 2});
    if (rank == 1) return;
    Average average;
    average.add(rank + 1.0, 2.0);
    EXPECT_EQ(average.compute(pair), 1.0);
  });
}

}  // namespace
}  // namespace lockstep::test
