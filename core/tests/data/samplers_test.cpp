#include "lockstep/data/samplers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "data/loader_settings.h"
#include "data/partition.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

using Indices = std::vector<std::int64_t>;

Indices sequence(const Sampler& sampler, std::uint64_t seed, std::int64_t epoch) {
  const torch::Tensor order = sampler.sequence(seed, epoch);
  return {order.const_data_ptr<std::int64_t>(), order.const_data_ptr<std::int64_t>() + order.numel()};
}

Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

Indices whole(std::int64_t size) {
  Indices result(static_cast<std::size_t>(size));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

TEST(Samplers, WeightedDrawsInProportion) {
  const WeightedSampler sampler({1, 0, 3}, 40000);
  std::map<std::int64_t, int> counts;
  for (const std::int64_t index : sequence(sampler, 1, 2)) ++counts[index];
  EXPECT_EQ(counts[1], 0);
  EXPECT_NEAR(counts[0], 10000, 5 * std::sqrt(40000 * 0.25 * 0.75));
  EXPECT_EQ(sequence(sampler, 1, 2), sequence(sampler, 2, 1));  // seed + epoch
  EXPECT_NE(sequence(sampler, 1, 2), sequence(sampler, 1, 3));
  const WeightedSampler once({1, 0, 3, 2}, 3, Replacement::kWithout);
  EXPECT_EQ(sorted(sequence(once, 0, 0)), (Indices{0, 2, 3}));
}

TEST(Samplers, BalancedWeightsMakeClassesEqual) {
  EXPECT_EQ(balanced_weights(Indices{4, 0, 4, 4, 4}), (std::vector<double>{0.25, 1, 0.25, 0.25, 0.25}));
}

// Each sample once, in an order of its own in each epoch.
std::shared_ptr<const Sampler> without_replacement(const std::vector<double>& weights) {
  return std::make_shared<WeightedSampler>(weights, static_cast<std::int64_t>(weights.size()), Replacement::kWithout);
}

TEST(Samplers, RefuseWhatCannotBeRight) {
  EXPECT_THROW(WeightedSampler({}, 1), DataError);
  EXPECT_THROW(WeightedSampler({0, 0}, 1), DataError);
  EXPECT_THROW(WeightedSampler({1, -1}, 1), DataError);
  EXPECT_THROW(WeightedSampler({1, std::nan("")}, 1), DataError);
  EXPECT_THROW(WeightedSampler({1, 0}, 2, Replacement::kWithout), DataError);
  EXPECT_THROW(WeightedSampler({1, 1}, 0), DataError);
  EXPECT_THROW(balanced_weights(Indices{0, -1}), DataError);
  EXPECT_THROW(DistributedSampler(3, {.order = without_replacement({1, 1})}), DataError);
}

// 3, 5 and 2 ranks take turns in one epoch, as after restarts.
void expect_each_once(const std::shared_ptr<const Sampler>& order, const Indices& expected) {
  Indices seen;
  DistributedSampler first(order->dataset_size(), {.seed = 11, .order = order});
  first.set_epoch(2);
  SamplerState state = first.state();
  for (const auto& [world, steps] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{3, 7}, {5, 4}, {2, INT64_MAX}}) {
    for (std::int64_t rank = world - 1; rank >= 0; --rank) {
      DistributedSampler sampler(order->dataset_size(),
                                 {.num_replicas = world, .rank = rank, .seed = 11, .exact = true, .order = order});
      sampler.load_state(sampler_state_from_string(to_string(state)));
      const Indices indices = sampler.indices();
      const std::int64_t count = std::min(steps, sampler.remaining());
      seen.insert(seen.end(), indices.begin(), indices.begin() + count);
      sampler.advance(count);
      if (rank == 0) state = sampler.state();
    }
  }
  EXPECT_EQ(state.consumed, order->size());
  EXPECT_EQ(sorted(seen), expected);
}

TEST(Samplers, EveryOrderResumesOnAnyNumberOfRanks) {
  expect_each_once(without_replacement(std::vector<double>(1000, 1)), whole(1000));
  const auto weighted = std::make_shared<WeightedSampler>(std::vector<double>{1, 2, 3}, 500);
  expect_each_once(weighted, sorted(sequence(*weighted, 11, 2)));
}

TEST(Samplers, RefuseTheStateOfAnotherOrder) {
  const auto order = without_replacement({1, 2, 1, 2});
  DistributedSampler sampler(4, {.order = order});
  EXPECT_THROW(sampler.load_state(DistributedSampler(4, {}).state()), DataError);
  EXPECT_THROW(sampler.load_state(DistributedSampler(4, {.order = without_replacement({1, 2, 2, 1})}).state()),
               DataError);
  EXPECT_THROW(sampler.load_state(DistributedSampler(4, {.seed = 1, .order = order}).state()), DataError);
  EXPECT_NO_THROW(sampler.load_state(DistributedSampler(4, {.shuffle = false, .order = order}).state()));
}

TEST(Samplers, DrawsOfTheSameSampleHaveKeysOfTheirOwn) {
  const auto order = std::make_shared<WeightedSampler>(std::vector<double>{1, 1, 1}, 30);
  std::set<std::int64_t> keys;
  for (const std::int64_t rank : {0, 1}) {
    const DistributedSampler sampler(3, {.num_replicas = 2, .rank = rank, .order = order});
    const Indices indices = sampler.indices();
    const Indices own = sampler.keys();
    ASSERT_EQ(own.size(), indices.size());
    for (std::size_t i = 0; i < own.size(); ++i) EXPECT_EQ(own[i] % 3, indices[i]);
    keys.insert(own.begin(), own.end());
  }
  EXPECT_EQ(keys.size(), 30U);
  EXPECT_TRUE(DistributedSampler(3, {}).keys().empty());
}

// The positions of all ranks, in the order of ranks.
Indices split(std::int64_t left, Remainder remainder, const Indices& batches,
              std::vector<std::int64_t>* counts = nullptr) {
  Indices all;
  for (std::size_t rank = 0; rank < batches.size(); ++rank) {
    const Partition partition(static_cast<std::int64_t>(rank), static_cast<std::int64_t>(batches.size()), remainder,
                              batches);
    for (std::int64_t k = 0; k < partition.count(left); ++k) all.push_back(partition.position(k, left));
    if (counts != nullptr) counts->push_back(partition.count(left));
    EXPECT_EQ(partition.consumed(0, left), 0);
  }
  return all;
}

TEST(Partition, UnequalBatchesShareEachGlobalBatch) {
  EXPECT_EQ(split(8, Remainder::kExact, {3, 1}), (Indices{0, 1, 2, 4, 5, 6, 3, 7}));
  for (const Indices& batches : std::vector<Indices>{{1}, {3, 2, 2}, {5, 1, 1, 4}}) {
    const std::int64_t global = std::accumulate(batches.begin(), batches.end(), std::int64_t{0});
    for (std::int64_t left = 0; left < 4 * global; ++left) {
      EXPECT_EQ(sorted(split(left, Remainder::kExact, batches)), whole(left));
      EXPECT_EQ(sorted(split(left, Remainder::kDrop, batches)), whole(left / global * global));
      std::vector<std::int64_t> counts;
      const Indices repeated = split(left, Remainder::kRepeat, batches, &counts);
      EXPECT_EQ(sorted(repeated), whole(static_cast<std::int64_t>(repeated.size())));
      EXPECT_LT(static_cast<std::int64_t>(repeated.size()) - left, static_cast<std::int64_t>(batches.size()));
      for (std::size_t rank = 0; rank < batches.size(); ++rank) {
        const std::int64_t steps = (counts[rank] + batches[rank] - 1) / batches[rank];
        EXPECT_EQ(steps, (left + global - 1) / global) << "rank " << rank << " of " << left;
        const Partition partition(static_cast<std::int64_t>(rank), static_cast<std::int64_t>(batches.size()),
                                  Remainder::kRepeat, batches);
        for (std::int64_t step = 0; step <= steps; ++step) {
          const std::int64_t taken = std::min(step * batches[rank], counts[rank]);
          EXPECT_EQ(partition.consumed(taken, left), std::min(step * global, left));
        }
      }
    }
  }
}

TEST(MachineShare, BatchAndWorkersAreSplitEvenly) {
  const Share third{.rank = 6, .world_size = 8, .local_rank = 2, .local_world_size = 4, .nodes = 2};
  EXPECT_EQ(batches_of_ranks(third, 10), (Indices{3, 3, 2, 2, 3, 3, 2, 2}));
  EXPECT_THROW(batches_of_ranks(third, 3), DataError);
  EXPECT_THROW(batches_of_ranks({.rank = 0, .world_size = 4, .nodes = 2}, 8),
               DataError);  // 1 process here, 3 on the other machine
  EXPECT_EQ(workers_of_process(third, 7), 2);
  EXPECT_EQ(workers_of_process({.rank = 0, .world_size = 2, .local_rank = 0, .local_world_size = 2}, 3), 2);
  EXPECT_EQ(workers_of_process(third, 2), 1);
  EXPECT_EQ(cores_of_process(third, 16, 16), 4);  // no launcher has split the cores
  EXPECT_EQ(cores_of_process(third, 4, 16), 4);   // a launcher has split them
  EXPECT_EQ(cores_of_process({}, 16, 16), 16);
  EXPECT_EQ(cores_of_process(third, 2, 2), 1);
  EXPECT_EQ(cores_of_process(third, 4, 16, 5.0), 2);  // the control group pays for 5 cores of 4 processes
  EXPECT_EQ(cores_of_process(third, 16, 16, 0.5), 1);
  EXPECT_EQ(cores_of_process({}, 16, 16, 64.0), 16);
}

}  // namespace
}  // namespace lockstep::data
