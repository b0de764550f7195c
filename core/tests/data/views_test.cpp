#include "lockstep/data/views.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

using Values = std::vector<std::int64_t>;

// Sample i is `first` + i, its target is its random key. Counts the calls of get_batch.
class NumbersFrom : public Dataset {
 public:
  NumbersFrom(std::int64_t first, std::int64_t size, std::int64_t bad = -1) : first_(first), size_(size), bad_(bad) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override { return {torch::tensor(first_ + index), torch::tensor(index)}; }
  Example get_batch(std::span<const std::int64_t> indices, const SampleContext& context = {}) const override {
    Values data;
    Values target;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == bad_) throw SampleError(bad_, "cat.jpg: damaged");
      data.push_back(first_ + indices[i]);
      target.push_back(context.key(i, indices[i]));
    }
    ++*batches_;
    return {torch::tensor(data), torch::tensor(target)};
  }
  std::int64_t batches() const { return *batches_; }

 private:
  std::int64_t first_;
  std::int64_t size_;
  std::int64_t bad_;
  std::shared_ptr<std::int64_t> batches_ = std::make_shared<std::int64_t>(0);
};

Values values_in(const torch::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(), tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

Example all_of(const Dataset& dataset) {
  Values indices(static_cast<std::size_t>(dataset.size()));
  std::iota(indices.begin(), indices.end(), 0);
  return dataset.get_batch(indices);
}

TEST(Views, SubsetPicksAndHandsBatchesOnWithItsOwnKeys) {
  const NumbersFrom numbers(100, 10);
  const Subset subset(numbers, {7, 3, 3});
  const Example batch = all_of(subset);
  EXPECT_EQ(values_in(batch.data), (Values{107, 103, 103}));
  EXPECT_EQ(values_in(batch.target), (Values{0, 1, 2}));
  EXPECT_EQ(numbers.batches(), 1);
  EXPECT_EQ(subset.get(1).data.item<std::int64_t>(), 103);
}

TEST(Views, ConcatMixesItsPartsInOneBatch) {
  const ConcatDataset both(
      {NumbersFrom(0, 3), std::make_shared<NumbersFrom>(100, 0), std::make_shared<const NumbersFrom>(200, 2)});
  EXPECT_EQ(both.size(), 5);
  const Example batch = both.get_batch(Values{4, 0, 3, 2});
  EXPECT_EQ(values_in(batch.data), (Values{201, 0, 200, 2}));
  EXPECT_EQ(values_in(batch.target), (Values{4, 0, 3, 2}));
  EXPECT_EQ(both.get(3).data.item<std::int64_t>(), 200);
  EXPECT_EQ(ConcatDataset({}).size(), 0);
}

TEST(Views, MapGetsEachSampleAndItsContext) {
  const auto doubled =
      map_dataset(NumbersFrom(1, 3), [](Example sample) { return Example(sample.data * 2, sample.target); });
  EXPECT_EQ(values_in(all_of(doubled).data), (Values{2, 4, 6}));
  EXPECT_EQ(doubled.get(2).data.item<std::int64_t>(), 6);
  const auto keyed = map_dataset(NumbersFrom(1, 3), [](Example sample, const SampleContext& context) {
    return Example(sample.data, torch::tensor(context.keys[0] + 10 * context.epoch));
  });
  EXPECT_EQ(values_in(keyed.get_batch(Values{2, 1}, {.epoch = 5}).target), (Values{52, 51}));
}

TEST(Views, RepeatHasOtherKeysInEachPass) {
  const auto twice = repeat(NumbersFrom(5, 2), 2);
  EXPECT_EQ(values_in(all_of(twice).data), (Values{5, 6, 5, 6}));
  EXPECT_EQ(values_in(all_of(twice).target), (Values{0, 1, 2, 3}));
}

TEST(Views, TheOutermostDatasetKeysTheRandomness) {
  const auto nested = repeat(Subset(ConcatDataset({NumbersFrom(0, 4), NumbersFrom(10, 4)}), {6, 1}), 2);
  const Example batch = all_of(nested);
  EXPECT_EQ(values_in(batch.data), (Values{12, 1, 12, 1}));
  EXPECT_EQ(values_in(batch.target), (Values{0, 1, 2, 3}));
  DataLoader loader(nested, {.batch_size = 4, .num_workers = 1, .rank = 0, .world_size = 1});
  EXPECT_EQ(values_in(loader.begin()->target), (Values{0, 1, 2, 3}));
}

TEST(Views, ErrorsNameTheOutermostIndexAndAllBelow) {
  const auto view = repeat(Subset(NumbersFrom(0, 9, /*bad=*/7), {0, 7}), 3);
  try {
    all_of(view);
    FAIL();
  } catch (const SampleError& error) {
    EXPECT_EQ(error.index(), 1);
    EXPECT_STREQ(error.what(), "sample 1: sample 7: cat.jpg: damaged");
  }
}

TEST(Views, RefuseWhatIsNotThere) {
  EXPECT_THROW(Subset(NumbersFrom(0, 3), {3}), DataError);
  EXPECT_THROW(repeat(NumbersFrom(0, 3), 0), DataError);
  EXPECT_THROW(MapDataset(NumbersFrom(0, 3), nullptr), DataError);
  EXPECT_THROW(Subset(std::shared_ptr<const Dataset>(), {}), DataError);
  EXPECT_THROW(repeat(NumbersFrom(0, 3), 2).get_batch(Values{6}), SampleError);
  EXPECT_THROW(ConcatDataset({NumbersFrom(0, 3)}).get(-1), SampleError);
}

}  // namespace
}  // namespace lockstep::data
