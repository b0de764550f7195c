// Several loops over one loader, and loops during which the program moves the loader's cursor.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"
#include "support/expect_error.h"

namespace lockstep::data {
namespace {

using Row = std::vector<std::int64_t>;
using Rows = std::vector<Row>;

class Places : public DatasetOf<std::int64_t> {
 public:
  explicit Places(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::int64_t get(std::int64_t index) const override { return index; }

 private:
  std::int64_t size_;
};

class PlaceStream : public IterableDatasetOf<std::int64_t> {
 public:
  SampleStream<std::int64_t> iterate(const StreamShare& share) const override {
    return [next = share.part(), parts = share.parts()]() mutable -> std::optional<std::int64_t> {
      return next < 12 ? std::optional(std::exchange(next, next + parts)) : std::nullopt;
    };
  }
};

class PairsOfPlaces : public BatchSampler {
 public:
  std::int64_t dataset_size() const override { return 12; }
  std::int64_t size() const override { return 6; }
  Rows batches(std::uint64_t /*seed*/, std::int64_t epoch) const override {
    Rows all;
    for (std::int64_t i = 0; i < 6; ++i) {
      all.push_back({(2 * i + epoch) % 12, (2 * i + 1 + epoch) % 12});
    }
    return all;
  }
  std::uint64_t fingerprint() const override { return 5; }
};

using PlaceLoader = DataLoaderOf<std::int64_t>;
using PlaceOptions = PlaceLoader::Options;

Row row_of(const torch::Tensor& batch) {
  return {batch.const_data_ptr<std::int64_t>(), batch.const_data_ptr<std::int64_t>() + batch.numel()};
}

Rows whole_epoch(PlaceLoader& loader) {
  Rows rows;
  for (const torch::Tensor& batch : loader) rows.push_back(row_of(batch));
  return rows;
}

// Every order, without workers and with: twelve samples in batches of two.
std::vector<PlaceOptions> all_orders() {
  std::vector<PlaceOptions> all;
  for (const int workers : {0, 2, kAutoWorkers}) {
    PlaceOptions options{.batch_size = 2, .num_workers = workers, .rank = 0, .world_size = 1};
    options.shuffle = true;
    all.push_back(options);
    options.shuffle = false;
    options.sampler = std::make_shared<WeightedSampler>(std::vector<double>(12, 1.0), 12);
    all.push_back(options);
    options.sampler = std::make_shared<WeightedSampler>(std::vector<double>(12, 1.0), 12, Replacement::kWithout);
    all.push_back(options);
    options.sampler = nullptr;
    options.batch_size = 1;
    options.batch_sampler = std::make_shared<PairsOfPlaces>();
    all.push_back(options);
  }
  return all;
}

Rows epoch_of(const PlaceOptions& options, std::int64_t epoch) {
  PlaceLoader loader(Places(12), options);
  loader.set_epoch(epoch);
  return whole_epoch(loader);
}

// Calls `move` in the second of six bodies; the loop goes on. Returns its batches.
Rows loop_with(PlaceLoader& loader, const std::function<void()>& move) {
  Rows rows;
  for (const torch::Tensor& batch : loader) {
    rows.push_back(row_of(batch));
    if (rows.size() == 2) move();
  }
  return rows;
}

TEST(LoaderLoops, SetEpochInALoopThatGoesOnCostsTheNextEpochNoSample) {
  for (const PlaceOptions& options : all_orders()) {
    for (const std::int64_t next : {0, 1, 7}) {
      PlaceLoader loader(Places(12), options);
      const Rows rows = loop_with(loader, [&] { loader.set_epoch(next); });
      EXPECT_EQ(rows, epoch_of(options, 0));
      EXPECT_EQ(loader.state().epoch, next);
      EXPECT_EQ(loader.state().consumed, 0);
      EXPECT_EQ(loader.batches_left(), 6);
      EXPECT_EQ(whole_epoch(loader), epoch_of(options, next));
      EXPECT_EQ(whole_epoch(loader), epoch_of(options, next + 1));
    }
  }
}

TEST(LoaderLoops, LoadStateInALoopThatGoesOnCostsTheNextLoopNoSample) {
  for (const PlaceOptions& options : all_orders()) {
    PlaceLoader loader(Places(12), options);
    SamplerState state = loader.state();
    state.epoch = 3;
    state.consumed = options.batch_sampler ? 4 : 8;
    const Rows rows = loop_with(loader, [&] { loader.load_state(state); });
    EXPECT_EQ(rows, epoch_of(options, 0));
    EXPECT_EQ(loader.state(), state);
    PlaceLoader resumed(Places(12), options);
    resumed.load_state(state);
    const Rows rest = whole_epoch(resumed);
    EXPECT_EQ(rest.size(), 2U);
    EXPECT_EQ(whole_epoch(loader), rest);
  }
}

TEST(LoaderLoops, SetEpochInALoopOverAnIterableCostsNoSample) {
  for (const int workers : {0, 2}) {
    DataLoaderOf loader(PlaceStream(), {.batch_size = 2, .num_workers = workers, .rank = 0, .world_size = 1});
    for (int loop = 0; loop < 3; ++loop) {
      std::multiset<std::int64_t> seen;
      for (const torch::Tensor& batch : loader) {
        for (const std::int64_t value : row_of(batch)) seen.insert(value);
        if (seen.size() == 4) loader.set_epoch(5);
      }
      EXPECT_EQ(seen.size(), 12U);
      EXPECT_EQ(loader.epoch(), 5);
    }
  }
}

template <typename Loader>
void expect_stale(typename Loader::Iterator& loop) {
  test::expect_error<DataError>(ErrorCode::kUnsupported, {"another loop over the same loader", "a loader of its own"},
                                [&] { ++loop; });
}

TEST(LoaderLoops, AnOlderLoopThatGoesOnIsAnErrorAndTheNewOneHasAllItsBatches) {
  for (const PlaceOptions& options : all_orders()) {
    PlaceLoader loader(Places(12), options);
    auto outer = loader.begin();
    ++outer;
    EXPECT_EQ(whole_epoch(loader), epoch_of(options, 1));
    expect_stale<PlaceLoader>(outer);
    expect_stale<PlaceLoader>(outer);
    auto later = loader.begin();  // two loops in turns: only the newer one goes on
    expect_stale<PlaceLoader>(outer);
    Rows rows;
    for (; later != loader.end(); ++later) rows.push_back(row_of(*later));
    EXPECT_EQ(rows, epoch_of(options, 2));
  }
  DataLoaderOf stream(PlaceStream(), {.batch_size = 2, .num_workers = 2, .rank = 0, .world_size = 1});
  auto outer = stream.begin();
  std::int64_t batches = 0;
  for (const torch::Tensor& batch : stream) batches += batch.numel() / 2;
  EXPECT_EQ(batches, 6);
  expect_stale<PlaceLoader>(outer);
}

// After its last batch an older loop asks for nothing.
TEST(LoaderLoops, ANewLoopInTheLastBodyOfAnotherIsNoError) {
  for (const PlaceOptions& options : all_orders()) {
    PlaceLoader loader(Places(12), options);
    int bodies = 0;
    for (const torch::Tensor& batch : loader) {
      bodies += static_cast<int>(batch.numel()) / 2;
      if (bodies == 6) {
        EXPECT_EQ(whole_epoch(loader).size(), 6U);
      }
    }
    EXPECT_EQ(bodies, 6);
    EXPECT_EQ(loader.state().epoch, 2);
  }
}

std::size_t warnings_of(const std::function<void()>& action) {
  std::size_t warnings = 0;
  log::set_output([&](std::string_view line) {
    warnings += line.find("the order of epoch 0 again") == std::string_view::npos ? 0 : 1;
  });
  action();
  log::set_output({});
  return warnings;
}

TEST(LoaderLoops, ALoaderMadeAnewInEachEpochIsOneWarning) {
  constexpr std::int64_t kSize = 1237;  // of no other loader
  const auto run = [](PlaceOptions options, const std::function<void(PlaceLoader&, int)>& prepare) {
    options.rank = 0;
    options.world_size = 1;
    for (int epoch = 0; epoch < 4; ++epoch) {
      PlaceLoader loader(Places(kSize), options);
      prepare(loader, epoch);
      for (const torch::Tensor& batch : loader) {
        if (options.seed == 2 && batch.numel() > 0) break;  // to look at one batch is not an epoch
      }
    }
  };
  const auto nothing = [](PlaceLoader&, int) {};
  EXPECT_EQ(warnings_of([&] { run({.batch_size = 500}, nothing); }), 0U);  // the dataset's order is the same anyway
  EXPECT_EQ(warnings_of([&] {
              run({.batch_size = 500, .shuffle = true},
                  [](PlaceLoader& loader, int epoch) { loader.set_epoch(epoch); });
            }),
            0U);
  EXPECT_EQ(warnings_of([&] { run({.batch_size = 500, .shuffle = true, .seed = 2}, nothing); }), 0U);
  EXPECT_EQ(warnings_of([&] { run({.batch_size = 500, .shuffle = true}, nothing); }), 1U);
  EXPECT_EQ(warnings_of([&] {
              PlaceLoader loader(Places(kSize),
                                 {.batch_size = 500, .shuffle = true, .seed = 3, .rank = 0, .world_size = 1});
              for (int epoch = 0; epoch < 3; ++epoch) whole_epoch(loader);
            }),
            0U);
}

}  // namespace
}  // namespace lockstep::data
