#include "lockstep/data/distributed_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

using Indices = std::vector<std::int64_t>;

Indices all_ranks(std::int64_t size, DistributedSamplerOptions options, const SamplerState* from = nullptr) {
  Indices all;
  for (options.rank = 0; options.rank < options.num_replicas; ++options.rank) {
    DistributedSampler sampler(size, options);
    if (from != nullptr) sampler.load_state(*from);
    const Indices part = sampler.indices();
    EXPECT_EQ(sampler.remaining(), static_cast<std::int64_t>(part.size()));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

Indices whole(std::int64_t size) {
  Indices result(static_cast<std::size_t>(size));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

TEST(DistributedSampler, PadsByRepetitionEvenWhenPaddingExceedsTheSize) {
  EXPECT_EQ(DistributedSampler(5, {.num_replicas = 3, .rank = 1, .shuffle = false}).indices(), (Indices{1, 4}));
  EXPECT_EQ(DistributedSampler(5, {.num_replicas = 3, .rank = 2, .shuffle = false}).indices(), (Indices{2, 0}));
  EXPECT_EQ(all_ranks(2, {.num_replicas = 7, .shuffle = false}), (Indices{0, 1, 0, 1, 0, 1, 0}));
}

TEST(DistributedSampler, DropLastLeavesOutTheTail) {
  EXPECT_EQ(DistributedSampler(5, {.num_replicas = 3, .rank = 2, .shuffle = false, .drop_last = true}).indices(),
            (Indices{2}));
  EXPECT_TRUE(all_ranks(2, {.num_replicas = 3, .drop_last = true}).empty());
}

TEST(DistributedSampler, ExactGivesEverySampleToOneRankOnce) {
  for (const std::int64_t size : {0, 1, 2, 3, 10, 97}) {
    for (const std::int64_t world : {1, 2, 3, 8}) {
      Indices all = all_ranks(size, {.num_replicas = world, .exact = true});
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, whole(size)) << size << " on " << world;
    }
  }
}

TEST(DistributedSampler, EpochsDifferAndAreReproducible) {
  DistributedSampler sampler(100, {.seed = 7});
  const Indices first = sampler.indices();
  sampler.set_epoch(1);
  EXPECT_NE(sampler.indices(), first);
  sampler.set_epoch(0);
  EXPECT_EQ(sampler.indices(), first);
  // The order depends on seed + epoch only.
  DistributedSampler other(100, {.seed = 6});
  other.set_epoch(1);
  EXPECT_EQ(other.indices(), first);
}

TEST(DistributedSampler, GoesOnWhereItStopped) {
  DistributedSampler sampler(101, {.num_replicas = 4, .rank = 1, .seed = 3});
  sampler.set_epoch(5);
  const Indices epoch = sampler.indices();
  sampler.advance(9);
  const SamplerState state = sampler_state_from_string(to_string(sampler.state()));
  EXPECT_EQ(state.consumed, 36);
  DistributedSampler resumed(101, {.num_replicas = 4, .rank = 1, .seed = 3});
  resumed.load_state(state);
  EXPECT_EQ(resumed.indices(), Indices(epoch.begin() + 9, epoch.end()));
  EXPECT_EQ(resumed.samples_per_epoch(), 26);
  EXPECT_EQ(resumed.state(), state);
}

// 3, 5, 2 and 1 ranks take turns in one epoch.
TEST(DistributedSampler, EverySampleOnceThoughTheWorldSizeChanges) {
  const std::int64_t size = 103;
  std::map<std::int64_t, int> seen;
  SamplerState state{size, 2, 0, 11, true};
  for (const auto& [world, steps] : std::vector<std::pair<std::int64_t, std::int64_t>>{{3, 7}, {5, 4}, {2, 13}}) {
    for (std::int64_t rank = world - 1; rank >= 0; --rank) {
      DistributedSampler sampler(size, {.num_replicas = world, .rank = rank, .seed = 11});
      sampler.load_state(state);
      const Indices indices = sampler.indices();
      for (std::int64_t i = 0; i < steps; ++i) ++seen[indices[static_cast<std::size_t>(i)]];
      sampler.advance(steps);
      if (rank == 0) state = sampler.state();
    }
  }
  EXPECT_EQ(state.consumed, 3 * 7 + 5 * 4 + 2 * 13);
  for (const std::int64_t index : all_ranks(size, {.num_replicas = 1, .seed = 11}, &state)) ++seen[index];
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(size));
  for (const auto& [index, times] : seen) EXPECT_EQ(times, 1) << index;
}

TEST(DistributedSampler, StateNeverPointsBehindTheEpoch) {
  DistributedSampler sampler(5, {.num_replicas = 3, .rank = 0});
  sampler.advance(2);
  EXPECT_EQ(sampler.state().consumed, 5);
  DistributedSampler resumed(5, {.num_replicas = 2, .rank = 0});
  resumed.load_state(sampler.state());
  EXPECT_TRUE(resumed.indices().empty());
}

TEST(DistributedSampler, RefusesWhatCannotBeRight) {
  EXPECT_THROW(DistributedSampler(-1), DataError);
  EXPECT_THROW(DistributedSampler(5, {.num_replicas = 2, .rank = 2}), DataError);
  EXPECT_THROW(DistributedSampler(5, {.num_replicas = 0}), DataError);
  EXPECT_THROW(DistributedSampler(5, {.drop_last = true, .exact = true}), DataError);
  EXPECT_THROW(DistributedSampler(5, {.num_replicas = 2}), DataError);  // without a rank
  EXPECT_THROW(DistributedSampler(5, {.rank = 0}), DataError);
  DistributedSampler sampler(5, {.num_replicas = 2, .rank = 0});
  EXPECT_THROW(sampler.advance(4), DataError);
  EXPECT_THROW(sampler.set_epoch(-1), DataError);
}

TEST(DistributedSampler, RefusesTheStateOfOtherData) {
  DistributedSampler sampler(100, {.seed = 1});
  const auto message = [&](const SamplerState& state) -> std::string {
    try {
      sampler.load_state(state);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({99, 0, 0, 1, true}).find("dataset size 99, this sampler 100"), std::string::npos);
  EXPECT_NE(message({100, 0, 0, 2, true}).find("seed 2, this sampler 1"), std::string::npos);
  EXPECT_NE(message({100, 0, 0, 1, false}).find("shuffle"), std::string::npos);
  EXPECT_NE(message({100, 0, 101, 1, true}).find("impossible"), std::string::npos);
  for (const char* text : {"", "size=1", "size=1 epoch=0 consumed=-1 seed=0 shuffle=1", "size=x"}) {
    EXPECT_THROW(sampler_state_from_string(text), DataError) << text;
  }
}

}  // namespace
}  // namespace lockstep::data
