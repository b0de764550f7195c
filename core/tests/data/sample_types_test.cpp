// Samples that are not {data, target}: how they become batches, through the loader and its views.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "lockstep/data/data_loader.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/data/views.h"

namespace lockstep::data {

struct Box2 {
  torch::Tensor corners;
  std::map<std::string, torch::Tensor> notes;
};
auto fields(Box2& box) {
  return std::tie(box.corners, box.notes);
}

struct Scene {
  torch::Tensor pixels;
  Box2 box;
};
auto fields(Scene& scene) {
  return std::tie(scene.pixels, scene.box);
}

namespace {

using Values = std::vector<std::int64_t>;

Values flat_values(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.to(torch::kLong).contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

template <typename F>
std::string message_of(const F& function) {
  try {
    function();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

// Any type of sample, made from its index and the key of its randomness.
template <typename S>
class Made : public DatasetOf<S> {
 public:
  using Make = std::function<S(std::int64_t index, std::int64_t key)>;
  Made(std::int64_t size, Make make) : size_(size), make_(std::move(make)) {}
  std::int64_t size() const override { return size_; }
  S get(std::int64_t index) const override { return make_(index, index); }
  S sample(std::int64_t index, const SampleContext& context) const override {
    return make_(index, context.key(0, index) + 1000 * context.epoch);
  }

 private:
  std::int64_t size_;
  Make make_;
};

template <typename S, typename B = BatchOf<S>>
DataLoaderOptionsOf<S, B> alone(DataLoaderOptionsOf<S, B> options) {
  options.rank = 0;
  options.world_size = 1;
  return options;
}

TEST(Collate, FollowsPyTorchsRules) {
  EXPECT_EQ(collate<std::int32_t>({1, 2}).scalar_type(), torch::kLong);
  EXPECT_EQ(collate<bool>({true, false}).scalar_type(), torch::kBool);
  EXPECT_EQ(collate<float>({1, 2}).scalar_type(), torch::kFloat);
  EXPECT_EQ(collate<double>({1, 2}).scalar_type(), torch::kDouble);
  EXPECT_EQ(collate<std::string>({"a", "b"}), (std::vector<std::string>{"a", "b"}));
  using Sample = std::tuple<torch::Tensor, int, std::vector<torch::Tensor>, std::array<double, 2>, std::string>;
  const auto make = [](int i) {
    return Sample{torch::full({2}, i), i, {torch::tensor(i), torch::tensor(-i)}, {0.5 * i, 1}, std::to_string(i)};
  };
  const auto [tensor, number, list, pair, text] = collate<Sample>({make(1), make(2), make(3)});
  EXPECT_EQ(flat_values(tensor), (Values{1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(tensor.sizes(), (Values{3, 2}));
  EXPECT_EQ(flat_values(number), (Values{1, 2, 3}));
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(flat_values(list[1]), (Values{-1, -2, -3}));
  EXPECT_EQ(pair[0].scalar_type(), torch::kDouble);
  EXPECT_EQ(flat_values(pair[1]), (Values{1, 1, 1}));
  EXPECT_EQ(text, (std::vector<std::string>{"1", "2", "3"}));
}

TEST(Collate, StructsOfStructsAndMapsKeepTheirTypes) {
  const auto make = [](int i) {
    return Scene{torch::full({2, 2}, i), {torch::arange(4), {{"label", torch::tensor(i)}}}};
  };
  Scene batch = collate<Scene>({make(4), make(5)});
  EXPECT_EQ(batch.pixels.sizes(), (Values{2, 2, 2}));
  EXPECT_EQ(batch.box.corners.sizes(), (Values{2, 4}));
  EXPECT_EQ(flat_values(batch.box.notes["label"]), (Values{4, 5}));
  int tensors = 0;
  for_each_tensor(batch, [&](torch::Tensor& tensor) { tensors += tensor.size(0) == 2 ? 1 : 0; });
  EXPECT_EQ(tensors, 3);
  static_assert(HoldsTensors<Scene>::value && !HoldsTensors<std::vector<std::string>>::value);
}

TEST(Collate, ErrorsNameThePlaceInTheSample) {
  using Map = std::map<std::string, torch::Tensor>;
  const torch::Tensor one = torch::ones({1});
  const torch::Tensor two = torch::ones({2});
  EXPECT_NE(message_of([&] {
              collate<Map>({{{"a", one}, {"b", one}}, {{"a", one}, {"b", two}}});
            }).find("[\"b\"] at position 1 in the batch is Float [2], at position 0 it is Float [1]"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              collate<Map>({{{"a", one}}, {{"b", one}}});
            }).find("only one of them has \"a\""),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              collate<Map>({{{"a", one}}, {{"a", one}, {"b", one}}});
            }).find("has \"b\""),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              collate<std::vector<int>>({{1, 2}, {1}});
            }).find("has 1 elements, at position 0 it has 2"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              collate<std::pair<int, torch::Tensor>>({{1, one}, {2, two}});
            }).find("[1] at position 1"),
            std::string::npos);
  EXPECT_NE(message_of([] { collate<int>({}); }).find("no samples"), std::string::npos);
}

TEST(Collate, RefusesIntegersThatInt64DoesNotHave) {
  const std::uint64_t largest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(flat_values(collate<std::uint64_t>({7, largest})), (Values{7, std::numeric_limits<std::int64_t>::max()}));
  EXPECT_NE(message_of([&] {
              collate<std::pair<int, std::uint64_t>>({{1, 7}, {2, largest + 1}});
            }).find("[1] at position 1 in the batch is 9223372036854775808"),
            std::string::npos);
}

TEST(DataLoaderOf, GivesStructsMapsAndTuples) {
  for (const int workers : {0, 2}) {
    const Made<Scene> scenes(5, [](std::int64_t index, std::int64_t key) {
      return Scene{torch::tensor(index), {torch::tensor(key), {{"label", torch::tensor(-index)}}}};
    });
    DataLoaderOf loader(scenes, {.batch_size = 2, .num_workers = workers, .rank = 0, .world_size = 1});
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      std::int64_t next = 0;
      for (Scene& batch : loader) {
        const torch::Tensor expected = torch::arange(next, std::min<std::int64_t>(5, next + 2));
        EXPECT_TRUE(torch::equal(batch.pixels, expected));
        EXPECT_TRUE(torch::equal(batch.box.corners, expected + 1000 * epoch));  // sample() gets its context
        EXPECT_TRUE(torch::equal(batch.box.notes["label"], -expected));
        next += 2;
      }
      EXPECT_EQ(next, 6);
    }
    EXPECT_EQ(loader.size(), 3);
    EXPECT_EQ(loader.dataset().size(), 5);
    DataLoaderOf pairs(std::make_shared<const Made<std::pair<int, std::string>>>(
                           3, [](std::int64_t index,
                                 std::int64_t) { return std::pair(static_cast<int>(index), std::to_string(index)); }),
                       {.batch_size = 3, .num_workers = workers, .rank = 0, .world_size = 1});
    for (auto& [numbers, texts] : pairs) {
      EXPECT_EQ(flat_values(numbers), (Values{0, 1, 2}));
      EXPECT_EQ(texts, (std::vector<std::string>{"0", "1", "2"}));
    }
  }
}

TEST(DataLoaderOf, CollateMayMakeAnyTypeOfBatch) {
  struct Padded {
    torch::Tensor rows;
    Values lengths;
  };
  const Made<Values> lists(
      4, [](std::int64_t index, std::int64_t) { return Values(static_cast<std::size_t>(index) + 1, 7); });
  const auto pad = [](std::vector<Values> samples) {
    Padded batch{torch::zeros({static_cast<std::int64_t>(samples.size()), 4}), {}};
    for (const Values& sample : samples) batch.lengths.push_back(static_cast<std::int64_t>(sample.size()));
    return batch;
  };
  DataLoaderOf<Values, Padded> loader(lists,
                                      {.batch_size = 4, .num_workers = 1, .rank = 0, .world_size = 1, .collate = pad});
  for (const Padded& batch : loader) EXPECT_EQ(batch.lengths, (Values{1, 2, 3, 4}));
  using Loader = DataLoaderOf<Values, Padded>;
  EXPECT_NE(message_of([&] { Loader(lists, {.rank = 0, .world_size = 1}); }).find("collate function"),
            std::string::npos);
  const DataLoaderOptionsOf<Values, Padded> pinned{.pin_memory = true, .rank = 0, .world_size = 1, .collate = pad};
  EXPECT_NE(message_of([&] { Loader(lists, pinned); }).find("the loader finds none in batches of this type"),
            std::string::npos);
}

TEST(DataLoaderOf, ErrorsNameTheSample) {
  for (const int workers : {0, 2}) {
    const Made<Scene> scenes(6, [](std::int64_t index, std::int64_t) -> Scene {
      if (index == 3) throw std::runtime_error("the disk is on fire");
      return {torch::tensor(index), {torch::tensor(index), {}}};
    });
    DataLoaderOf loader(scenes, {.batch_size = 2, .num_workers = workers, .rank = 0, .world_size = 1});
    auto batch = loader.begin();
    try {
      ++batch;
      FAIL();
    } catch (const SampleError& error) {
      EXPECT_STREQ(error.what(), "sample 3: the disk is on fire");
    }
    ++batch;
    EXPECT_EQ(flat_values(batch->pixels), (Values{4, 5}));
  }
}

using TensorMap = std::map<std::string, torch::Tensor>;

TEST(ViewsOf, WorkOnSamplesOfAnyType) {
  const Made<TensorMap> maps(6, [](std::int64_t index, std::int64_t key) {
    if (index == 5) throw std::runtime_error("damaged");
    return TensorMap{{"index", torch::tensor(index)}, {"key", torch::tensor(key)}};
  });
  const SubsetOf subset(maps, {4, 0, 2});
  TensorMap batch = subset.get_batch(Values{0, 2});
  EXPECT_EQ(flat_values(batch["index"]), (Values{4, 2}));
  EXPECT_EQ(flat_values(batch["key"]), (Values{0, 2}));
  const auto numbers =
      map_dataset(repeat(subset, 2), [](TensorMap sample) { return sample["index"].item<double>() / 2; });
  EXPECT_EQ(flat_values(2 * numbers.get_batch(Values{0, 3, 5})), (Values{4, 4, 2}));
  const ConcatDatasetOf<TensorMap> both({maps, subset});
  batch = both.get_batch(Values{6, 1, 8});
  EXPECT_EQ(flat_values(batch["index"]), (Values{4, 1, 2}));
  EXPECT_EQ(flat_values(batch["key"]), (Values{6, 1, 8}));
  EXPECT_EQ(message_of([&] { SubsetOf(maps, {1, 5}).get_batch(Values{0, 1}); }), "sample 1: sample 5: damaged");
}

TEST(TensorDataset, GivesRows) {
  const torch::Tensor inputs = torch::arange(12).reshape({4, 3});
  const TensorDataset rows(inputs, torch::arange(4) * 10);
  EXPECT_EQ(flat_values(rows.get(2).data), (Values{6, 7, 8}));
  DataLoader loader(rows, alone<Example>({.batch_size = 3, .shuffle = true, .num_workers = 1}));
  std::set<std::int64_t> seen;
  for (auto& [data, target] : loader) {
    EXPECT_TRUE(torch::equal(data.select(1, 0) * 10, target * 3));
    for (const std::int64_t value : flat_values(target)) seen.insert(value);
  }
  EXPECT_EQ(seen, (std::set<std::int64_t>{0, 10, 20, 30}));
  EXPECT_THROW(rows.get(4), SampleError);
  EXPECT_NE(message_of([&] { TensorDataset(inputs, torch::ones({3})); }).find("expected 4 samples"), std::string::npos);
  EXPECT_THROW(TensorDataset(inputs, torch::Tensor()), DataError);
  EXPECT_THROW(TensorDataset(torch::tensor(1), torch::tensor(1)), DataError);
}

TEST(RandomSplit, PartsDoNotOverlapAndCoverAll) {
  const TensorDataset rows(torch::arange(10), torch::arange(10));
  const auto by_fraction = random_split(rows, {0.5, 0.25, 0.25}, 3);
  ASSERT_EQ(by_fraction.size(), 3U);
  EXPECT_EQ(by_fraction[0].size(), 6);  // 5 + 2 + 2, and the one that is left
  std::multiset<std::int64_t> all;
  for (const Subset& part : by_fraction) all.insert(part.indices().begin(), part.indices().end());
  EXPECT_EQ(all, (std::multiset<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(random_split(rows, {7, 3})[1].size(), 3);
  EXPECT_EQ(random_split(rows, {0.8, 0.05, 0.05, 0.1})[0].size(), 9);  // summed one by one they are above 1
  const std::vector<std::vector<double>> wrong_lengths{{7, 4}, {0.5, 0.4}, {-1, 11}, {7.5, 2.5}, {}};
  for (const std::vector<double>& wrong : wrong_lengths) {
    EXPECT_THROW(random_split(rows, wrong), DataError);
  }
}

}  // namespace
}  // namespace lockstep::data
