// Iterable datasets and batch samplers: which worker of which rank gets which samples, and what the loader says of
// workers that fail or hang.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

using Values = std::vector<std::int64_t>;
using Batches = std::vector<Values>;

Values values(const torch::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(), tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

// The numbers from 0 on. Its parts are ranges of different lengths, or turns. `bad` throws.
class Counter : public IterableDatasetOf<std::int64_t> {
 public:
  enum class Split { kRanges, kTurns };
  Counter(std::int64_t size, Split split, std::int64_t bad = -1) : size_(size), split_(split), bad_(bad) {}

  SampleStream<std::int64_t> iterate(const StreamShare& share) const override {
    if (split_ == Split::kTurns) return take_turns<std::int64_t>(range(0, size_), share);
    const auto begin = [&](std::int64_t part) { return size_ * part * part / (share.parts() * share.parts()); };
    return range(begin(share.part()), begin(share.part() + 1));
  }

 private:
  SampleStream<std::int64_t> range(std::int64_t begin, std::int64_t end) const {
    return [next = begin, end, bad = bad_]() mutable -> std::optional<std::int64_t> {
      if (next == end) return std::nullopt;
      const std::int64_t value = next++;
      if (value == bad) throw std::runtime_error("line too long");
      return value;
    };
  }

  std::int64_t size_;
  Split split_;
  std::int64_t bad_;
};

// The numbers from 0 on, by index.
class Integers : public DatasetOf<std::int64_t> {
 public:
  explicit Integers(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::int64_t get(std::int64_t index) const override { return index; }

 private:
  std::int64_t size_;
};

template <typename Loader>
Batches one_epoch(Loader& loader) {
  Batches batches;
  for (const torch::Tensor& batch : loader) batches.push_back(values(batch));
  return batches;
}

std::multiset<std::int64_t> flat(const Batches& batches) {
  std::multiset<std::int64_t> all;
  for (const Values& batch : batches) all.insert(batch.begin(), batch.end());
  return all;
}

struct Case {
  int workers;
  std::int64_t ranks;
  std::int64_t size;
  bool drop_last;
};

std::vector<Case> grid() {
  std::vector<Case> cases;
  for (const int workers : {0, 1, 2, 3}) {
    for (const std::int64_t ranks : {1, 2, 3, 4, 5}) {
      for (const std::int64_t size : {0, 1, 7, 32, 61}) {
        for (const bool drop_last : {false, true}) cases.push_back({workers, ranks, size, drop_last});
      }
    }
  }
  return cases;
}

DataLoaderOptionsOf<std::int64_t> options_of(const Case& test, std::int64_t rank) {
  return {.batch_size = 4,
          .drop_last = test.drop_last,
          .num_workers = test.workers,
          .rank = rank,
          .world_size = test.ranks};
}

std::string name_of(const Case& test) {
  return std::to_string(test.workers) + " workers, " + std::to_string(test.ranks) + " ranks, " +
         std::to_string(test.size) + " samples" + (test.drop_last ? ", drop_last" : "");
}

// Each sample once over all workers of all ranks; drop_last only leaves out the end of each worker's share.
void expect_each_once(const Case& test, const std::multiset<std::int64_t>& seen, std::int64_t most_left_out) {
  for (const std::int64_t value : seen) EXPECT_EQ(seen.count(value), 1U) << value << ": " << name_of(test);
  EXPECT_LE(static_cast<std::int64_t>(seen.size()), test.size) << name_of(test);
  EXPECT_GE(static_cast<std::int64_t>(seen.size()), test.size - (test.drop_last ? most_left_out : 0)) << name_of(test);
}

TEST(LoaderShares, AnIterableGivesEachSampleOnceOverWorkersAndRanks) {
  for (const Counter::Split split : {Counter::Split::kRanges, Counter::Split::kTurns}) {
    for (const Case& test : grid()) {
      std::multiset<std::int64_t> seen;
      for (std::int64_t rank = 0; rank < test.ranks; ++rank) {
        DataLoaderOf loader(Counter(test.size, split), options_of(test, rank));
        const Batches batches = one_epoch(loader);
        seen.merge(flat(batches));
        EXPECT_EQ(one_epoch(loader), batches);  // the next epoch iterates from the start
        if (!test.drop_last) continue;
        for (const Values& batch : batches) EXPECT_EQ(batch.size(), 4U);
      }
      expect_each_once(test, seen, 3 * std::max(1, test.workers) * test.ranks);
    }
  }
}

TEST(LoaderShares, AMappedDatasetGivesEachSampleOnceOverWorkersAndRanks) {
  for (const Case& test : grid()) {
    std::multiset<std::int64_t> seen;
    std::size_t batches = 0;
    for (std::int64_t rank = 0; rank < test.ranks; ++rank) {
      DataLoaderOptionsOf<std::int64_t> options = options_of(test, rank);
      options.shuffle = true;
      options.exact = !test.drop_last;
      DataLoaderOf loader(Integers(test.size), options);
      const Batches mine = one_epoch(loader);
      if (test.drop_last && rank > 0) {
        EXPECT_EQ(mine.size(), batches) << name_of(test);
      }
      batches = mine.size();
      seen.merge(flat(mine));
    }
    expect_each_once(test, seen, test.ranks - 1 + 3 * test.ranks);
  }
}

TEST(LoaderShares, TheWorkersOfAnIterableTakeTurns) {
  const auto batches = [](int workers, Counter::Split split) {
    DataLoaderOf loader(Counter(12, split), {.batch_size = 2, .num_workers = workers, .rank = 0, .world_size = 1});
    return one_epoch(loader);
  };
  // Shares of 3 workers: 0; 1 2 3 4; 5 to 11. Worker 0 ends first, then worker 1.
  EXPECT_EQ(batches(3, Counter::Split::kRanges), (Batches{{0}, {1, 2}, {5, 6}, {3, 4}, {7, 8}, {9, 10}, {11}}));
  EXPECT_EQ(batches(2, Counter::Split::kTurns), (Batches{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}}));
  EXPECT_EQ(batches(0, Counter::Split::kTurns), batches(1, Counter::Split::kRanges));
}

TEST(LoaderShares, AnIterableKnowsItsShareSeedAndEpoch) {
  class Shares : public IterableDatasetOf<Values> {
   public:
    SampleStream<Values> iterate(const StreamShare& share) const override {
      Values mine{share.rank, share.world_size, share.worker, share.num_workers, static_cast<std::int64_t>(share.seed),
                  share.epoch};
      return [mine, given = false]() mutable -> std::optional<Values> {
        if (std::exchange(given, true)) return std::nullopt;
        return mine;
      };
    }
  };
  const auto keep = [](std::vector<Values> samples) { return samples; };
  DataLoaderOf<Values, Batches> loader(Shares(),
                                       {.seed = 9, .num_workers = 2, .rank = 1, .world_size = 3, .collate = keep});
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::int64_t worker = 0;
    for (const Batches& batch : loader) EXPECT_EQ(batch, (Batches{{1, 3, worker++, 2, 9, epoch}}));
    EXPECT_EQ(worker, 2);
  }
}

TEST(LoaderShares, ALoopOverAnIterableMayBeLeftAndTheLoaderDestroyed) {
  for (const int workers : {0, 1, 3}) {
    DataLoaderOf loader(Counter(INT64_MAX / 100, Counter::Split::kTurns),
                        {.batch_size = 2, .num_workers = workers, .rank = 0, .world_size = 1});
    for (int epoch = 0; epoch < 10; ++epoch) {
      int batches = 0;
      for (const torch::Tensor& batch : loader) {
        if (batches == 0) {
          EXPECT_EQ(batch[0].item<std::int64_t>(), 0);
        }
        if (++batches > epoch) break;
      }
      EXPECT_EQ(loader.epoch(), epoch);
    }
  }
}

TEST(LoaderShares, ErrorsOfAnIterableNameTheWorkerAndLoseNoOtherSample) {
  for (const int workers : {0, 2}) {
    DataLoaderOf loader(Counter(20, Counter::Split::kTurns, /*bad=*/9),
                        {.batch_size = 3, .num_workers = workers, .rank = 0, .world_size = 1});
    std::multiset<std::int64_t> seen;
    int errors = 0;
    auto batch = loader.begin();
    while (batch != loader.end()) {
      for (const std::int64_t value : values(*batch)) seen.insert(value);
      try {
        ++batch;
      } catch (const SampleError& error) {
        ++errors;
        EXPECT_STREQ(error.what(), workers == 0
                                       ? "sample 9: in the stream of worker 0 of 1 on rank 0 of 1: line too long"
                                       : "sample 4: in the stream of worker 1 of 2 on rank 0 of 1: line too long");
        ++batch;
      }
    }
    EXPECT_EQ(errors, 1);
    EXPECT_EQ(seen.size(), 19U);
    EXPECT_EQ(seen.count(9), 0U);
  }
}

TEST(LoaderShares, AnIterableThatCannotBeginIsOneErrorForItsWorker) {
  class Absent : public IterableDatasetOf<std::int64_t> {
   public:
    SampleStream<std::int64_t> iterate(const StreamShare& share) const override {
      if (share.worker == 1) throw std::runtime_error("no such file");
      return [next = 0]() mutable -> std::optional<std::int64_t> {
        return next < 3 ? std::optional(next++) : std::nullopt;
      };
    }
  };
  DataLoaderOf loader(Absent(), {.batch_size = 1, .num_workers = 2, .rank = 0, .world_size = 1});
  int batches = 0;
  int errors = 0;
  auto batch = loader.begin();
  while (batch != loader.end()) {
    ++batches;
    try {
      ++batch;
    } catch (const DataError& error) {
      ++errors;
      EXPECT_STREQ(error.what(), "worker 1 of 2 on rank 0 of 1 could not begin to iterate: no such file");
      ++batch;
    }
  }
  EXPECT_EQ(batches, 3);
  EXPECT_EQ(errors, 1);
}

TEST(LoaderShares, WhatNeedsANumberOfSamplesIsAnErrorForAnIterable) {
  const Counter counter(5, Counter::Split::kTurns);
  using Loader = DataLoaderOf<std::int64_t>;
  EXPECT_THROW(Loader(counter, {.shuffle = true, .rank = 0, .world_size = 1}), DataError);
  EXPECT_THROW(Loader(counter, {.exact = true, .rank = 0, .world_size = 1}), DataError);
  EXPECT_THROW(Loader(counter, {.num_workers = kAutoWorkers, .rank = 0, .world_size = 1}), DataError);
  EXPECT_THROW(Loader(counter, {.machine_workers = 2}), DataError);
  const Loader loader(counter, {.rank = 0, .world_size = 1});
  EXPECT_THROW(loader.size(), DataError);
  EXPECT_THROW(loader.state(), DataError);
  EXPECT_THROW(loader.dataset(), DataError);
}

// Batch i is i numbers from i on, in the reverse order in odd epochs.
class Triangle : public BatchSampler {
 public:
  explicit Triangle(std::int64_t count) : count_(count) {}
  std::int64_t dataset_size() const override { return 2 * count_; }
  std::int64_t size() const override { return count_; }
  Batches batches(std::uint64_t /*seed*/, std::int64_t epoch) const override {
    Batches all;
    for (std::int64_t i = 1; i <= count_; ++i) {
      all.emplace_back();
      for (std::int64_t k = 0; k < i; ++k) all.back().push_back(i + k - 1);
    }
    if (epoch % 2 == 1) std::reverse(all.begin(), all.end());
    return all;
  }
  std::uint64_t fingerprint() const override { return 77; }

 private:
  std::int64_t count_;
};

TEST(LoaderShares, RanksTakeTheBatchesOfABatchSamplerInTurns) {
  const auto sampler = std::make_shared<Triangle>(5);
  for (const int workers : {0, 2}) {
    const auto batches = [&](std::int64_t rank, bool exact, bool drop_last) {
      DataLoaderOf loader(Integers(10), {.batch_sampler = sampler,
                                         .drop_last = drop_last,
                                         .exact = exact,
                                         .num_workers = workers,
                                         .rank = rank,
                                         .world_size = 2});
      const Batches first = one_epoch(loader);
      EXPECT_EQ(static_cast<std::int64_t>(first.size()), loader.size());
      if (rank == 0) {
        EXPECT_EQ(one_epoch(loader)[0], (Values{4, 5, 6, 7, 8}));
      }
      return first;
    };
    EXPECT_EQ(batches(0, true, false), (Batches{{0}, {2, 3, 4}, {4, 5, 6, 7, 8}}));
    EXPECT_EQ(batches(1, true, false), (Batches{{1, 2}, {3, 4, 5, 6}}));
    EXPECT_EQ(batches(1, false, false), (Batches{{1, 2}, {3, 4, 5, 6}, {0}}));
    EXPECT_EQ(batches(0, false, true), (Batches{{0}, {2, 3, 4}}));
  }
}

TEST(LoaderShares, ABatchSamplersEpochContinuesWithOtherRanks) {
  const auto sampler = std::make_shared<Triangle>(6);
  DataLoaderOf before(Integers(12), {.batch_sampler = sampler, .rank = 0, .world_size = 1});
  auto batch = before.begin();
  ++batch;
  const SamplerState state = before.state();
  EXPECT_EQ(state.consumed, 2);
  std::multiset<std::int64_t> sizes;
  for (const std::int64_t rank : {0, 1}) {
    DataLoaderOf after(Integers(12), {.batch_sampler = sampler, .rank = rank, .world_size = 2});
    after.load_state(state);
    for (const Values& mine : one_epoch(after)) sizes.insert(static_cast<std::int64_t>(mine.size()));
  }
  EXPECT_EQ(sizes, (std::multiset<std::int64_t>{3, 4, 5, 6}));
}

TEST(LoaderShares, RefusesWrongBatchSamplers) {
  class Wrong : public Triangle {
   public:
    explicit Wrong(Batches batches) : Triangle(2), batches_(std::move(batches)) {}
    Batches batches(std::uint64_t, std::int64_t) const override { return batches_; }

   private:
    Batches batches_;
  };
  using Loader = DataLoaderOf<std::int64_t>;
  for (const Batches& wrong : std::vector<Batches>{{{0}}, {{0}, {}}, {{0}, {4}}, {{-1}, {0}}}) {
    Loader loader(Integers(4), {.batch_sampler = std::make_shared<Wrong>(wrong), .rank = 0, .world_size = 1});
    for (int tries = 0; tries < 2; ++tries) {
      EXPECT_THROW(loader.begin(), DataError);
      EXPECT_EQ(loader.state().epoch, 0);
    }
  }
  const auto sampler = std::make_shared<Triangle>(2);
  EXPECT_THROW(Loader(Integers(5), {.batch_sampler = sampler, .rank = 0, .world_size = 1}), DataError);
  EXPECT_THROW(Loader(Integers(4), {.batch_size = 2, .batch_sampler = sampler, .rank = 0, .world_size = 1}), DataError);
  EXPECT_THROW(Loader(Integers(4), {.shuffle = true, .batch_sampler = sampler, .rank = 0, .world_size = 1}), DataError);
}

// Sample 5 waits until it is released.
class Slow : public DatasetOf<std::int64_t> {
 public:
  explicit Slow(std::shared_ptr<std::atomic<bool>> go) : go_(std::move(go)) {}
  std::int64_t size() const override { return 12; }
  std::int64_t get(std::int64_t index) const override {
    if (index == 5) go_->wait(false);
    return index;
  }

 private:
  std::shared_ptr<std::atomic<bool>> go_;
};

TEST(LoaderWorkers, ATimeoutNamesTheWorkerAndTheSampleAndLosesNothing) {
  const auto go = std::make_shared<std::atomic<bool>>(false);
  DataLoaderOf loader(
      Slow(go),
      {.batch_size = 4, .num_workers = 2, .timeout = std::chrono::milliseconds(50), .rank = 0, .world_size = 1});
  Batches batches;
  int timeouts = 0;
  const auto next = [&](auto step) {
    for (;;) {
      try {
        return step();
      } catch (const DataError& error) {
        ASSERT_EQ(error.code(), ErrorCode::kTimeout);
        const std::string what = error.what();
        // On a slow machine a wait ends before anything is made, and later batches take longer than the timeout too.
        if (what.find("is at sample 5") == std::string::npos) continue;
        EXPECT_NE(what.find("has been making batch 1 (samples 4, 5, 6, 7) for "), std::string::npos) << what;
        ++timeouts;
        *go = true;
        go->notify_all();
      }
    }
  };
  std::optional<DataLoaderOf<std::int64_t>::Iterator> batch;
  next([&] { batch.emplace(loader.begin()); });
  ASSERT_TRUE(batch);
  while (*batch != loader.end()) {
    batches.push_back(values(**batch));
    next([&] { ++*batch; });
  }
  EXPECT_EQ(batches, (Batches{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}}));
  EXPECT_GE(timeouts, 1);
  DataLoaderOptionsOf<std::int64_t> forever{.num_workers = 1, .rank = 0, .world_size = 1};
  forever.timeout = std::chrono::milliseconds::max();
  EXPECT_THROW(DataLoaderOf<std::int64_t>(Integers(3), forever), DataError);
  using Loader = DataLoaderOf<std::int64_t>;
  EXPECT_THROW(Loader(Integers(3), {.timeout = std::chrono::milliseconds(50), .rank = 0, .world_size = 1}), DataError);
}

TEST(LoaderWorkers, AfterATimeoutBeginWaitsOnInTheSameEpoch) {
  const auto go = std::make_shared<std::atomic<bool>>(false);
  DataLoaderOf loader(
      Slow(go),
      {.batch_size = 12, .num_workers = 1, .timeout = std::chrono::milliseconds(5), .rank = 0, .world_size = 1});
  EXPECT_THROW(loader.begin(), DataError);
  EXPECT_THROW(loader.begin(), DataError);
  *go = true;
  go->notify_all();
  std::optional<DataLoaderOf<std::int64_t>::Iterator> batch;
  while (!batch) {
    try {
      batch.emplace(loader.begin());
    } catch (const DataError& error) {
      ASSERT_EQ(error.code(), ErrorCode::kTimeout);
    }
  }
  EXPECT_EQ(loader.epoch(), 0);
  EXPECT_EQ(values(**batch).size(), 12U);
  EXPECT_EQ(loader.state().epoch, 1);  // the start of the next one
}

}  // namespace
}  // namespace lockstep::data
