// Metrics over ranks with different numbers of samples, beside metrics.py, which has all samples and counts by
// definition.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/nn/metrics.h"
#include "support/process_ranks.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

constexpr std::int64_t kClasses = 6;

std::vector<double> numbers(const c10::IValue& list) {
  std::vector<double> result;
  for (const c10::IValue& number : list.toListRef()) result.push_back(number.toDouble());
  return result;
}

void expect_near(const std::vector<double>& ours, const std::vector<double>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-15) << i;
}

struct Samples {
  c10::impl::GenericDict all;
  int rank;

  Samples(const std::string& path, int number) : all(checkpoint::read_torch_file(path).toGenericDict()), rank(number) {}

  // Those of this rank, in batches of up to 7.
  std::vector<torch::Tensor> batches(const char* name) const {
    const c10::IValue parts = all.at(name);
    const auto mine = static_cast<std::size_t>(rank);
    return (parts.isTuple() ? parts.toTupleRef().elements()[mine] : parts.toListRef()[mine]).toTensor().split(7);
  }
};

void expect_metrics_of_all(const Samples& samples) {
  const c10::impl::GenericDict& all = samples.all;
  const auto batches = [&](const char* name) { return samples.batches(name); };
  Average loss;
  Accuracy accuracy({1, 2, 5});
  ConfusionMatrix confusion(kClasses);
  ConfusionMatrix of_classes(kClasses);
  for (std::size_t i = 0; i < batches("labels").size(); ++i) {
    const torch::Tensor scores = batches("scores")[i];
    const torch::Tensor labels = batches("labels")[i];
    loss.add(batches("losses")[i].sum().item<double>(), static_cast<double>(labels.size(0)));
    accuracy.update(scores, labels);
    confusion.update(scores, labels);
    of_classes.update(scores.argmax(1), labels.to(torch::kInt));
  }
  EXPECT_NEAR(loss.compute(), all.at("mean").toDouble(), 1e-14);
  expect_near(accuracy.compute(), numbers(all.at("top")));
  EXPECT_TRUE(torch::equal(confusion.compute(), all.at("confusion").toTensor()));
  EXPECT_TRUE(torch::equal(of_classes.compute(), all.at("confusion").toTensor()));
}

// One to five ranks, some of them without samples.
TEST(MetricsParity, AreThoseOfAllSamples) {
  const test::SharedScratchFolder folder;
  const std::vector<std::pair<int, std::string>> worlds = {{1, "40"}, {2, "31,9"}, {3, "0,44,5"}, {5, "17,0,1,30,0"}};
  std::vector<std::string> arguments = {folder.path()};
  for (const auto& [ranks, sizes] : worlds) arguments.push_back(sizes);
  if (::getenv("RANK") == nullptr) test::run_python("metrics.py", arguments);
  for (const auto& world : worlds) {
    test::run_processes(world.first, [&](int rank) {
      const ProcessGroupGuard group;
      expect_metrics_of_all(Samples(folder.path(world.second + ".pt"), rank));
    });
  }
}

}  // namespace
}  // namespace lockstep
