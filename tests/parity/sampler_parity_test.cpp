#include <gtest/gtest.h>

#include <sstream>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/data/views.h"
#include "support/python/python.h"

namespace lockstep::data {
namespace {

TEST(DistributedSamplerParity, GivesPyTorchsIndices) {
  std::istringstream lines(test::run_python("sampler_order.py"));
  std::string line;
  int compared = 0;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::int64_t size = 0;
    std::int64_t epoch = 0;
    DistributedSamplerOptions options;
    fields >> size >> options.num_replicas >> options.rank >> options.shuffle >> options.seed >> epoch >>
        options.drop_last;
    ASSERT_TRUE(fields) << line;
    const std::vector<std::int64_t> expected{std::istream_iterator<std::int64_t>(fields), {}};
    DistributedSampler sampler(size, options);
    sampler.set_epoch(epoch);
    ASSERT_EQ(sampler.indices(), expected) << line;
    ASSERT_EQ(sampler.samples_per_epoch(), static_cast<std::int64_t>(expected.size())) << line;
    ++compared;
  }
  EXPECT_EQ(compared, 7 * (1 + 2 + 3 + 4 + 7 + 16) * 2 * 5);
}

TEST(WeightedSamplerParity, GivesPyTorchsIndices) {
  std::istringstream lines(test::run_python("weighted_order.py"));
  std::string line;
  int compared = 0;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::size_t count = 0;
    fields >> count;
    std::vector<double> weights(count);
    for (double& weight : weights) fields >> weight;
    std::int64_t draws = 0;
    bool replacement = false;
    std::int64_t seed = 0;
    fields >> draws >> replacement >> seed;
    ASSERT_TRUE(fields) << line;
    const std::vector<std::int64_t> expected{std::istream_iterator<std::int64_t>(fields), {}};
    const auto sampler =
        std::make_shared<WeightedSampler>(weights, draws, replacement ? Replacement::kWith : Replacement::kWithout);
    DistributedSampler sharded(static_cast<std::int64_t>(count),
                               {.seed = static_cast<std::uint64_t>(seed), .order = sampler});
    ASSERT_EQ(sharded.indices(), expected) << line;
    ++compared;
  }
  EXPECT_EQ(compared, 3 * 2 * 3);
}

TEST(RandomSplitParity, GivesPyTorchsIndices) {
  std::istringstream lines(test::run_python("random_split.py"));
  std::string line;
  int compared = 0;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::int64_t size = 0;
    std::uint64_t seed = 0;
    std::size_t count = 0;
    fields >> size >> seed >> count;
    std::vector<double> lengths(count);
    for (double& length : lengths) fields >> length;
    const TensorDataset rows(torch::arange(size), torch::arange(size));
    std::vector<std::int64_t> indices;
    for (const Subset& part : random_split(rows, lengths, seed)) {
      indices.push_back(part.size());
      indices.insert(indices.end(), part.indices().begin(), part.indices().end());
    }
    ASSERT_TRUE(fields) << line;
    ASSERT_EQ(indices, (std::vector<std::int64_t>{std::istream_iterator<std::int64_t>(fields), {}})) << line;
    ++compared;
  }
  EXPECT_EQ(compared, 6 * 3);
}

}  // namespace
}  // namespace lockstep::data
