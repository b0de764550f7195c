// The samples of micro-batches, and who computes which.
#include "lockstep/elastic/micro_batch_loader.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <set>
#include <vector>

#include "lockstep/data/tensor_dataset.h"

namespace lockstep::test {
namespace {

constexpr int kCount = 3;

data::TensorDataset numbers(std::int64_t size) {
  const torch::Tensor all = torch::arange(size);
  return {all.reshape({size, 1}), all};
}

std::vector<std::int64_t> values_of(const data::Example& batch) {
  const torch::Tensor values = batch.target.contiguous();
  const auto* const first = values.const_data_ptr<std::int64_t>();
  return {first, first + values.numel()};
}

using Steps = std::vector<std::vector<std::int64_t>>;  // the samples of a micro-batch, by step

Steps take(MicroBatchLoader<data::Example>& loader, int number, std::int64_t steps) {
  Steps taken;
  for (std::int64_t step = 0; step < steps; ++step) taken.push_back(values_of(loader.next({step, number, kCount})));
  return taken;
}

class MicroBatchLoaderWorkers : public testing::TestWithParam<int> {};

TEST_P(MicroBatchLoaderWorkers, GivesWhatTheLoadersOfAsManyRanksGive) {
  const data::DataLoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 7, .num_workers = GetParam()};
  MicroBatchLoader loader(numbers(50), options);
  for (int number = 0; number < kCount; ++number) {
    data::DataLoaderOptions of_rank = options;
    of_rank.rank = number;
    of_rank.world_size = kCount;
    data::DataLoader plain(numbers(50), of_rank);
    Steps expected;
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (data::Example& batch : plain) expected.push_back(values_of(batch));
    }
    EXPECT_EQ(take(loader, number, static_cast<std::int64_t>(expected.size())), expected) << number;
  }
}

// At every step of two epochs, also at their ends.
TEST_P(MicroBatchLoaderWorkers, ACursorOfOneRankServesAnother) {
  const data::DataLoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 7, .num_workers = GetParam()};
  MicroBatchLoader whole(numbers(50), options);
  std::vector<Steps> all;
  for (int number = 0; number < kCount; ++number) all.push_back(take(whole, number, 12));
  for (std::size_t done = 0; done < 10; ++done) {
    MicroBatchLoader first(numbers(50), options);
    take(first, 1, static_cast<std::int64_t>(done));
    MicroBatchLoader second(numbers(50), options);
    second.load_state(first.state());
    for (int number = 0; number < kCount; ++number) {
      const Steps& known = all[static_cast<std::size_t>(number)];
      EXPECT_EQ(take(second, number, 2), Steps(known.begin() + done, known.begin() + done + 2))
          << done << ' ' << number;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, MicroBatchLoaderWorkers, testing::Values(0, 2));

TEST(MicroBatchLoaderErrors, AStepWithDifferentNumbersOfBatches) {
  MicroBatchLoader loader(numbers(50), data::DataLoaderOptions{.batch_size = 4});
  take(loader, 0, 2);
  take(loader, 1, 1);
  try {
    loader.state();
    ADD_FAILURE() << "no error";
  } catch (const data::DataError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  }
}

TEST(MicroBatchLoaderErrors, OptionsThatNameAShare) {
  const auto expect_refused = [](const data::DataLoaderOptions& options) {
    try {
      MicroBatchLoader loader(numbers(5), options);
      ADD_FAILURE() << "no error";
    } catch (const data::DataError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  };
  expect_refused({.rank = 0, .world_size = 2});
  expect_refused({.machine_batch_size = 8});
  expect_refused({.exact = true});
}

TEST(ElasticStep, SharesMicroBatchesAmongTheRanks) {
  for (int count = 1; count <= 7; ++count) {
    for (int world = 1; world <= count; ++world) {
      std::multiset<int> all;
      for (int rank = 0; rank < world; ++rank) {
        const ElasticStep step(3, rank, world, count, std::nullopt);
        EXPECT_GE(step.parts(), count / world);
        EXPECT_EQ(step.weight(), static_cast<double>(world) / count);
        for (int part = 0; part < step.parts(); ++part) all.insert(step.begin(part).number);
      }
      std::multiset<int> expected;
      for (int number = 0; number < count; ++number) expected.insert(number);
      EXPECT_EQ(all, expected);
    }
  }
}

// Whichever rank computes it; another one in another step or with another seed.
TEST(ElasticStep, AMicroBatchHasItsRandomNumbers) {
  const auto drawn = [](std::int64_t number, int rank, int world, int part, std::uint64_t seed) {
    ElasticStep(number, rank, world, 4, seed).begin(part);
    return torch::rand({8});
  };
  const torch::Tensor third = drawn(5, 3, 4, 0, 1);
  EXPECT_TRUE(torch::equal(third, drawn(5, 0, 3, 1, 1)));
  EXPECT_TRUE(torch::equal(third, drawn(5, 0, 1, 3, 1)));
  EXPECT_FALSE(torch::equal(third, drawn(5, 2, 4, 0, 1)));
  EXPECT_FALSE(torch::equal(third, drawn(6, 3, 4, 0, 1)));
  EXPECT_FALSE(torch::equal(third, drawn(5, 3, 4, 0, 2)));
}

}  // namespace
}  // namespace lockstep::test
