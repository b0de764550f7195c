#include "lockstep/data/data_loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "lockstep/data/errors.h"
#include "lockstep/data/views.h"

namespace lockstep::data {
namespace {

using Batches = std::vector<std::vector<std::int64_t>>;

// Sample i is i and -i; `bad` throws. Counts its calls.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t size, std::int64_t bad = -1) : size_(size), bad_(bad) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override {
    ++*calls_;
    if (index == bad_) throw std::runtime_error("the disk is on fire");
    return {torch::tensor(index), torch::tensor(-index)};
  }
  std::int64_t calls() const { return *calls_; }

 private:
  std::int64_t size_;
  std::int64_t bad_;
  std::shared_ptr<std::atomic<std::int64_t>> calls_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

std::vector<std::int64_t> values_of(const torch::Tensor& data) {
  return {data.const_data_ptr<std::int64_t>(), data.const_data_ptr<std::int64_t>() + data.numel()};
}

Batches one_epoch(DataLoader& loader) {
  Batches batches;
  for (auto& [data, target] : loader) {
    EXPECT_TRUE(torch::equal(data, -target));
    batches.push_back(values_of(data));
  }
  return batches;
}

// Options for rank 0 of 1, so that the environment of the test does not matter.
DataLoaderOptions alone(DataLoaderOptions options) {
  options.rank = 0;
  options.world_size = 1;
  return options;
}

TEST(DataLoader, GivesBatchesInOrderAndASmallerLast) {
  DataLoader loader(Numbers(7), alone({.batch_size = 3}));
  EXPECT_EQ(one_epoch(loader), (Batches{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(loader.size(), 3);
  DataLoader dropping(Numbers(7), alone({.batch_size = 3, .drop_last = true}));
  EXPECT_EQ(one_epoch(dropping), (Batches{{0, 1, 2}, {3, 4, 5}}));
  DataLoader empty(Numbers(0), alone({.batch_size = 3}));
  EXPECT_TRUE(one_epoch(empty).empty());
}

TEST(DataLoader, BatchesAreTheSameForAnyNumberOfWorkers) {
  DataLoader plain(Numbers(101), alone({.batch_size = 8, .shuffle = true, .seed = 5}));
  DataLoader threaded(Numbers(101),
                      alone({.batch_size = 8, .shuffle = true, .seed = 5, .num_workers = 3, .prefetch = 1}));
  Batches first;
  for (int epoch = 0; epoch < 4; ++epoch) {
    const Batches expected = one_epoch(plain);
    EXPECT_EQ(one_epoch(threaded), expected);
    EXPECT_NE(expected, first);  // each epoch is shuffled without set_epoch
    first = expected;
    EXPECT_EQ(threaded.epoch(), epoch);
  }
}

TEST(DataLoader, RanksShareTheEpoch) {
  std::multiset<std::int64_t> seen;
  for (const std::int64_t rank : {0, 1, 2}) {
    DataLoader loader(Numbers(10), {.batch_size = 2, .shuffle = true, .exact = true, .rank = rank, .world_size = 3});
    for (const auto& batch : one_epoch(loader)) seen.insert(batch.begin(), batch.end());
  }
  EXPECT_EQ(seen, (std::multiset<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(DataLoader, LeavingALoopStartsTheNextEpochAndSetEpochGoesBack) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Numbers(64), alone({.batch_size = 4, .shuffle = true, .num_workers = workers}));
    const Batches first = one_epoch(loader);
    for (auto& batch : loader) {
      EXPECT_EQ(batch.data.numel(), 4);
      break;
    }
    EXPECT_EQ(loader.epoch(), 1);
    loader.set_epoch(0);
    EXPECT_EQ(one_epoch(loader), first);
  }
}

TEST(DataLoader, WorkersPauseWhenNobodyTakesTheBatches) {
  const Numbers numbers(1000);
  DataLoader loader(numbers, alone({.batch_size = 1, .num_workers = 2, .prefetch = 3}));
  auto batch = loader.begin();
  for (int taken = 2; taken <= 20; ++taken) {
    ++batch;
    EXPECT_LE(numbers.calls(), taken + 2 * 3);
  }
}

TEST(DataLoader, GoesOnMidEpochWithOtherWorkers) {
  DataLoader loader(Numbers(50), alone({.batch_size = 4, .shuffle = true, .num_workers = 2}));
  one_epoch(loader);
  SamplerState state;
  Batches rest;
  for (auto& [data, target] : loader) {
    if (state.consumed != 0) rest.push_back(values_of(data));
    if (loader.state().consumed == 12) state = loader.state();
  }
  EXPECT_EQ(loader.state(), (SamplerState{50, 2, 0, 0, true}));  // after the last batch: the next epoch
  const Batches next_epoch = one_epoch(loader);

  DataLoader resumed(Numbers(50), alone({.batch_size = 4, .shuffle = true}));
  resumed.load_state(state);
  resumed.set_epoch(1);  // as a program that counts epochs itself does
  EXPECT_EQ(resumed.state(), state);
  EXPECT_EQ(one_epoch(resumed), rest);
  EXPECT_EQ(one_epoch(resumed), next_epoch);
}

TEST(DataLoader, ErrorsNameTheSample) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Numbers(20, /*bad=*/13), alone({.batch_size = 4, .num_workers = workers}));
    int batches = 0;
    try {
      for (auto& batch : loader) batches += batch.data.numel() == 4 ? 1 : 0;
      FAIL() << "no error with " << workers << " workers";
    } catch (const SampleError& error) {
      EXPECT_EQ(error.index(), 13);
      EXPECT_STREQ(error.what(), "sample 13: the disk is on fire");
      EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
    }
    EXPECT_EQ(batches, 3);  // the batches before the error
    EXPECT_EQ(loader.state().consumed, 12);
  }
}

TEST(DataLoader, WhateverADatasetThrowsIsAnErrorThatNamesTheSample) {
  class Odd : public Dataset {
   public:
    explicit Odd(bool whole_batches) : whole_batches_(whole_batches) {}
    std::int64_t size() const override { return 8; }
    Example get(std::int64_t index) const override {
      if (index == 5) throw 42;  // NOLINT(hicpp-exception-baseclass)
      return {torch::tensor(index), torch::tensor(index)};
    }
    Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override {
      if (!whole_batches_) return Dataset::get_batch(indices, context);
      throw 42;  // NOLINT(hicpp-exception-baseclass)
    }

   private:
    bool whole_batches_;
  };
  const auto run = [](auto dataset, int workers) {
    DataLoader loader(std::move(dataset), alone({.batch_size = 4, .num_workers = workers}));
    for (auto& batch : loader) EXPECT_EQ(batch.data.numel(), 4);
  };
  for (const int workers : {0, 2}) {
    try {
      run(Odd(/*whole_batches=*/false), workers);
      ADD_FAILURE() << "no error with " << workers << " workers";
    } catch (const SampleError& error) {
      EXPECT_EQ(error.index(), 5);
      EXPECT_STREQ(error.what(), "sample 5: it threw an object that is not a std::exception");
      EXPECT_THROW(std::rethrow_if_nested(error), int);
    }
    EXPECT_THROW(run(Odd(/*whole_batches=*/true), workers), DataError);
    const auto mapped = map_dataset(Numbers(8), [](Example, const SampleContext&) -> Example { throw 42; });  // NOLINT
    EXPECT_THROW(run(mapped, workers), SampleError);
  }
}

TEST(DataLoader, UnequalSamplesCannotBeABatch) {
  class Growing : public Dataset {
    std::int64_t size() const override { return 4; }
    Example get(std::int64_t index) const override { return {torch::zeros({index + 1}), torch::tensor(0)}; }
  };
  DataLoader loader(Growing(), alone({.batch_size = 4}));
  try {
    loader.begin();
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(
        std::string(error.what()).find("data at position 1 in the batch is Float [2], at position 0 it is Float [1]"),
        std::string::npos)
        << error.what();
  }
  DataLoader padded(Growing(), alone({.batch_size = 4, .num_workers = 1, .collate = [](std::vector<Example> examples) {
                                        return Example(examples.back().data, torch::tensor(1));
                                      }}));
  EXPECT_EQ(padded.begin()->data.numel(), 4);
}

TEST(DataLoader, NothingIsLeftOfItsThreads) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  { DataLoader warm(Numbers(8), alone({.batch_size = 2, .num_workers = 1})); }
  const auto before = threads();
  for (int i = 0; i < 20; ++i) {
    DataLoader loader(Numbers(1000), alone({.batch_size = 2, .num_workers = 3}));
    auto batch = loader.begin();
    for (int taken = 0; taken < i; ++taken) ++batch;
  }
  // A thread may be in /proc for a moment after it was joined.
  while (threads() > before) std::this_thread::yield();
}

TEST(DataLoader, GradientsAreOffInEveryThread) {
  class Probe : public Dataset {
    std::int64_t size() const override { return 2; }
    Example get(std::int64_t) const override {
      return {torch::tensor(torch::GradMode::is_enabled()), torch::tensor(0)};
    }
  };
  for (const int workers : {0, 1}) {
    DataLoader loader(Probe(), alone({.num_workers = workers}));
    for (auto& batch : loader) EXPECT_FALSE(batch.data.item<bool>());
  }
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(DataLoader, TellsTheDatasetForWhichSeedAndEpoch) {
  class Keys : public Dataset {
    std::int64_t size() const override { return 6; }
    Example get(std::int64_t) const override { throw std::logic_error("only batches have a context"); }
    Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override {
      const auto count = static_cast<std::int64_t>(indices.size());
      Example batch(torch::empty({count, 2}, torch::kLong), torch::empty({count}, torch::kLong));
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t index = indices[static_cast<std::size_t>(i)];
        batch.data[i][0] = static_cast<std::int64_t>(context.seed);
        batch.data[i][1] = context.epoch;
        batch.target[i] = context.key(static_cast<std::size_t>(i), index) - index;
      }
      return batch;
    }
  };
  for (const int workers : {0, 2}) {
    for (const bool collate : {false, true}) {
      DataLoaderOptions options = alone({.batch_size = 2, .shuffle = true, .seed = 9, .num_workers = workers});
      if (collate) options.collate = [](const std::vector<Example>& examples) { return stack(examples); };
      DataLoader loader(Keys(), options);
      for (int epoch = 0; epoch < 2; ++epoch) {
        for (auto& [data, target] : loader) {
          EXPECT_TRUE(torch::equal(data, torch::tensor({{9, epoch}, {9, epoch}})));
          EXPECT_EQ(target.abs().sum().item<std::int64_t>(), 0);
        }
      }
    }
  }
}

TEST(DataLoader, AutomaticWorkersGiveTheSameBatches) {
  DataLoader plain(Numbers(400), alone({.batch_size = 2, .shuffle = true}));
  DataLoader automatic(Numbers(400), alone({.batch_size = 2, .shuffle = true, .num_workers = kAutoWorkers}));
  EXPECT_EQ(automatic.workers(), 1);
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(one_epoch(automatic), one_epoch(plain));
  EXPECT_GE(automatic.workers(), 1);
}

TEST(DataLoader, TheLoopCanGoOnAfterABadBatch) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Numbers(20, /*bad=*/13), alone({.batch_size = 4, .num_workers = workers}));
    Batches batches;
    auto batch = loader.begin();
    while (batch != loader.end()) {
      batches.push_back(values_of(batch->data));
      try {
        ++batch;
      } catch (const SampleError&) {
        EXPECT_EQ(loader.state().consumed, 12);
        ++batch;
      }
    }
    EXPECT_EQ(batches, (Batches{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {16, 17, 18, 19}}));
  }
}

TEST(DataLoader, TakesTheOrderOfASampler) {
  const auto sampler = std::make_shared<WeightedSampler>(std::vector<double>{0, 1, 1}, 40);
  DataLoader loader(Numbers(3), alone({.batch_size = 4, .sampler = sampler}));
  EXPECT_EQ(loader.size(), 10);
  const Batches first = one_epoch(loader);
  EXPECT_NE(one_epoch(loader), first);
  for (const auto& batch : first) EXPECT_EQ(std::count(batch.begin(), batch.end(), 0), 0);
  EXPECT_THROW(DataLoader(Numbers(3), alone({.shuffle = true, .sampler = sampler})), DataError);
  EXPECT_THROW(DataLoader(Numbers(4), alone({.sampler = sampler})), DataError);
}

// Writes batches of 1 MiB directly into the loader's memory.
class Wide : public Dataset {
 public:
  std::int64_t size() const override { return 64; }
  Example get(std::int64_t) const override { throw std::logic_error("whole batches only"); }
  Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    Example batch(context.empty({count, 64 * 1024}, torch::kFloat), context.empty({count}, torch::kLong));
    for (std::int64_t i = 0; i < count; ++i) {
      batch.data[i].fill_(indices[static_cast<std::size_t>(i)]);
      batch.target[i] = indices[static_cast<std::size_t>(i)];
    }
    return batch;
  }
};

TEST(DataLoader, UsesTheMemoryOfBatchesAgainButNeverWhileSomebodyHasIt) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Wide(), alone({.batch_size = 4, .num_workers = workers}));
    std::set<const void*> places;
    std::vector<torch::Tensor> kept;
    for (int epoch = 0; epoch < 5; ++epoch) {
      for (auto& [data, target] : loader) {
        places.insert(data.const_data_ptr());
        if (epoch == 1) kept.push_back(data.slice(0, 1, 2));
        EXPECT_TRUE(torch::equal(data.select(1, 5).to(torch::kLong), target));
      }
    }
    EXPECT_LE(places.size(), kept.size() + 2 * static_cast<std::size_t>(workers) + 4) << workers;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(kept[i][0][77].item<float>(), static_cast<float>(4 * i + 1));
    }
  }
}

std::int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return -1;
}

TEST(DataLoader, MemoryStaysFlatOverTwentyEpochs) {
  DataLoader loader(Wide(), alone({.batch_size = 8, .shuffle = true, .num_workers = 2}));
  const auto run = [&](int epochs) {
    for (int epoch = 0; epoch < epochs; ++epoch) {
      for (auto& batch : loader) EXPECT_EQ(batch.data.size(0), 8);
    }
  };
  run(3);
  const std::int64_t before = resident_kib();
  run(20);
  // A leak of one batch in each epoch would be 40 MiB.
  EXPECT_LT(resident_kib() - before, 20 * 1024);
}

TEST(DataLoader, ShareComesFromTheEnvironment) {
  EXPECT_EQ(share_from(Environment()).world_size, 1);
  const Share share = share_from(Environment({{"RANK", "2"}, {"WORLD_SIZE", "3"}}));
  EXPECT_EQ(share.rank, 2);
  EXPECT_EQ(share.world_size, 3);
  for (const Environment::Variables& wrong :
       std::vector<Environment::Variables>{{{"RANK", "1"}},
                                           {{"WORLD_SIZE", "2"}},
                                           {{"RANK", "2"}, {"WORLD_SIZE", "2"}},
                                           {{"RANK", "x"}, {"WORLD_SIZE", "2"}}}) {
    EXPECT_THROW(share_from(Environment(wrong)), DataError);
  }
}

TEST(DataLoader, RefusesWrongOptions) {
  EXPECT_THROW(DataLoader(Numbers(3), alone({.batch_size = 0})), DataError);
  EXPECT_THROW(DataLoader(Numbers(3), alone({.num_workers = -2})), DataError);
  EXPECT_THROW(DataLoader(Numbers(3), alone({.prefetch = 0})), DataError);
  EXPECT_THROW(DataLoader(Numbers(3), {.batch_size = 2, .machine_batch_size = 2}), DataError);
  EXPECT_THROW(DataLoader(Numbers(3), alone({.machine_batch_size = 2})), DataError);
  EXPECT_THROW(DataLoader(Numbers(3), {.num_workers = 2, .machine_workers = 2}), DataError);
  EXPECT_THROW(DataLoader(Numbers(3), alone({.device = torch::Device(torch::kCUDA, 99)})), DataError);
  EXPECT_NO_THROW(DataLoader(Numbers(3), alone({.pin_memory = true, .device = torch::Device(torch::kCPU)})));
  EXPECT_THROW(DataLoader(Numbers(3), {.rank = 0}), DataError);
  EXPECT_THROW(DataLoader(std::shared_ptr<const Dataset>()), DataError);
}

}  // namespace
}  // namespace lockstep::data
