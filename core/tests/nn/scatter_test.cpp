// Splitting nested values over devices and putting them together again; LibTorch's own chunk() is the judge of sizes.
#include "lockstep/nn/scatter.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "nn/error_texts.h"

namespace lockstep::test {
namespace {

using parallel::gather;
using parallel::replicated;
using parallel::scatter;

std::vector<torch::Device> cpus(std::size_t count) {
  return std::vector<torch::Device>(count, torch::kCPU);
}

TEST(Scatter, CutsAsChunkDoes) {
  for (const std::int64_t rows : {0, 1, 2, 3, 4, 5, 7, 30, 31, 64}) {
    for (const int devices : {1, 2, 3, 4, 7}) {
      const torch::Tensor rows_first = torch::arange(rows * 2).view({rows, 2});
      for (const std::int64_t dim : {0, 1, -1}) {
        const torch::Tensor tensor = dim == 0 ? rows_first : rows_first.t();
        const auto ours = scatter(tensor, cpus(devices), dim);
        const auto expected = tensor.chunk(devices, dim);
        ASSERT_EQ(ours.size(), expected.size()) << rows << " rows on " << devices;
        for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], expected[i]));
        EXPECT_TRUE(torch::equal(gather(ours, torch::kCPU, dim), tensor));
      }
    }
  }
}

struct Inner {
  torch::Tensor ids;
  std::map<std::string, torch::Tensor> by_name;
  friend auto fields(Inner& inner) { return std::tie(inner.ids, inner.by_name); }
};

enum class Mode { kTrain, kTest };

struct Batch {
  torch::Tensor images;
  std::vector<Inner> inner;
  std::unordered_map<int, torch::Tensor> by_number;
  std::pair<std::optional<torch::Tensor>, std::array<torch::Tensor, 2>> pair;
  std::variant<int, torch::Tensor> either;
  std::string text;
  Mode mode = Mode::kTrain;
};
auto fields(Batch& batch) {
  return std::tie(batch.images, batch.inner, batch.by_number, batch.pair, batch.either);
}

Batch example(std::int64_t rows) {
  const auto numbers = [rows](int start) { return torch::arange(start, start + rows); };
  Batch batch{numbers(0),   {{numbers(100), {{"a", numbers(200)}, {"b", numbers(300)}}}, {numbers(400), {}}},
              {},           {},
              numbers(500), "text",
              Mode::kTest};
  for (int i = 0; i < 20; ++i) batch.by_number[i] = numbers(1000 * i);
  batch.pair = {numbers(600), {numbers(700), torch::Tensor()}};
  return batch;
}

TEST(Scatter, CutsNestedValues) {
  const Batch batch = example(7);
  const std::vector<Batch> parts = scatter(batch, cpus(3));
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[2].images.numel(), 1);
  EXPECT_EQ(parts[1].inner[0].by_name.at("b")[0].item<int>(), 303);
  EXPECT_EQ(parts[1].by_number.at(19)[2].item<int>(), 19005);
  EXPECT_EQ(parts[1].pair.first->numel(), 3);
  EXPECT_FALSE(parts[1].pair.second[1].defined());
  EXPECT_EQ(std::get<torch::Tensor>(parts[2].either)[0].item<int>(), 506);
  EXPECT_EQ(parts[2].text, "text");
  EXPECT_EQ(parts[2].mode, Mode::kTest);

  const Batch whole = gather(parts, torch::kCPU);
  EXPECT_TRUE(torch::equal(whole.inner[0].by_name.at("a"), batch.inner[0].by_name.at("a")));
  for (const auto& [key, value] : batch.by_number) EXPECT_TRUE(torch::equal(whole.by_number.at(key), value));
  EXPECT_TRUE(torch::equal(*whole.pair.first, *batch.pair.first));
}

TEST(Scatter, GivesWholeValuesToAll) {
  using Values = std::tuple<torch::Tensor, torch::Tensor, parallel::Replicated<torch::Tensor>, int>;
  const Values values{torch::arange(4), torch::tensor(5), replicated(torch::arange(3)), 7};
  const auto parts = scatter(values, cpus(2));
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(std::get<0>(parts[1]).numel(), 2);
  EXPECT_EQ(std::get<1>(parts[1]).item<int>(), 5);
  EXPECT_EQ(std::get<2>(parts[1]).value.numel(), 3);
  EXPECT_EQ(std::get<3>(parts[1]), 7);
  EXPECT_EQ(scatter(std::string("no tensor"), cpus(3)).size(), 3U) << "as in PyTorch";
  EXPECT_TRUE(torch::equal(gather(std::vector<torch::Tensor>{torch::tensor(1), torch::tensor(2)}, torch::kCPU),
                           torch::tensor({1, 2})));
}

TEST(Scatter, KeepsTheGraph) {
  const torch::Tensor x = torch::randn({5, 2}, torch::requires_grad());
  auto parts = scatter(x, cpus(2));
  parts[1] = parts[1] * 3;
  gather(parts, torch::kCPU).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::tensor({1., 1., 1., 3., 3.}).view({5, 1}).expand({5, 2})));
}

TEST(Scatter, NamesWhatCannotBeCut) {
  Batch batch = example(6);
  batch.inner[0].by_name["b"] = torch::zeros({4});
  expect_in(error_of([&] { (void)scatter(batch, cpus(2)); }),
            {"value, field 1[0], field 1, 'b': has 4 rows in dimension 0, but value, field 0 has 6"});
  expect_in(error_of([&] {
              (void)scatter(std::pair(torch::zeros({3, 2}), torch::zeros({3})), cpus(2), 1);
            }),
            {"value[1]: a tensor of shape [3] cannot be split along dimension 1"});
  expect_in(error_of([&] { (void)scatter(torch::zeros({2}), {}); }), {"expected at least one device"});
  expect_in(error_of([&] { (void)scatter(torch::eye(4).to_sparse(), cpus(2)); }),
            {"value: a tensor of layout Sparse cannot be split", "replicated"});
}

TEST(Scatter, NamesWhatCannotBePutTogether) {
  using Values = std::vector<torch::Tensor>;
  expect_in(error_of([&] { (void)gather(Values{}, torch::kCPU); }), {"at least one value"});
  expect_in(error_of([&] {
              (void)gather(Values{torch::zeros({2, 3}), torch::zeros({2, 4})}, torch::kCPU);
            }),
            {"result: shapes [2, 3] of replica 0 and [2, 4] of replica 1"});
  expect_in(error_of([&] { (void)gather(Values{torch::zeros({2}), torch::Tensor()}, torch::kCPU); }), {"undefined"});
  expect_in(error_of([&] {
              (void)gather(std::vector<Values>{{torch::zeros({2})}, {}}, torch::kCPU);
            }),
            {"another number of values"});
  expect_in(error_of([&] {
              (void)gather(std::vector<std::pair<int, int>>{{1, 2}, {1, 3}}, torch::kCPU);
            }),
            {"result[1]: the results of replica 0 and replica 1"});
  using ByName = std::map<std::string, torch::Tensor>;
  expect_in(error_of([&] {
              (void)gather(std::vector<ByName>{{{"a", torch::zeros({1})}}, {{"b", torch::zeros({1})}}}, torch::kCPU);
            }),
            {"'a': the results"});
}

// What DistributedDataParallel does with `device_ids`.
TEST(Scatter, MovesNestedInputs) {
  const auto moved = parallel::detail::on_device(example(3), torch::kMeta);
  const Batch& batch = std::get<0>(moved);
  EXPECT_TRUE(batch.images.is_meta());
  EXPECT_TRUE(batch.inner[0].by_name.at("b").is_meta());
  EXPECT_TRUE(batch.pair.first->is_meta());
  const auto only_movable = std::make_unique<int>(3);
  EXPECT_EQ(&std::get<0>(parallel::detail::on_device(only_movable, torch::kMeta)), &only_movable);
}

// A NaN is not equal to itself.
TEST(Scatter, PutsValuesTogetherThatAreNoNumbers) {
  using Value = std::pair<torch::Tensor, std::vector<double>>;
  const Value value{torch::ones({2, 1}), {std::nan("")}};
  const Value together = gather(std::vector<Value>{value, value}, torch::kCPU);
  EXPECT_EQ(together.first.size(0), 4);
  EXPECT_TRUE(std::isnan(together.second.at(0)));
}

// Beside tensors: a value whose kind is not known, and one that cannot be copied. DataParallel refuses both.
TEST(Scatter, MovesTheTensorsBesideOtherValues) {
  using parallel::detail::on_device;
  struct Settings {
    double temperature = 0.5;
  };
  const std::pair<torch::Tensor, Settings> with_settings{torch::zeros({2}), {0.25}};
  const auto moved = on_device(with_settings, torch::kMeta);
  EXPECT_TRUE(std::get<0>(moved).first.is_meta());
  EXPECT_EQ(std::get<0>(moved).second.temperature, 0.25);

  using Owned = std::pair<torch::Tensor, std::unique_ptr<int>>;
  std::vector<Owned> owned;
  owned.emplace_back(torch::zeros({2}), std::make_unique<int>(3));
  EXPECT_EQ(&std::get<0>(on_device(owned, torch::kCPU)), &owned) << "it is there already";
  expect_in(error_of([&] { on_device(owned, torch::kMeta); }), {"input[0][0]: is on cpu", "on meta", "std::move"});
  const auto given = on_device(std::move(owned), torch::kMeta);
  EXPECT_TRUE(std::get<0>(given)[0].first.is_meta());
  EXPECT_EQ(*std::get<0>(given)[0].second, 3);
}

}  // namespace
}  // namespace lockstep::test
