// Values as bytes, and the collectives that carry them.
#include "lockstep/c10d/objects.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "c10d/ranks.h"

namespace lockstep::test {

struct Config {
  std::string name;
  std::vector<double> rates;
  bool operator==(const Config&) const = default;
};
auto fields(Config& config) {
  return std::tie(config.name, config.rates);
}

// With a value that is not sent.
struct Progress {
  torch::nn::Linear layer{2, 3};
  std::int64_t steps = 0;
  std::string host;
};
auto fields(Progress& progress) {
  return std::tie(progress.layer, progress.steps);
}

// May have no bytes.
struct Unsendable {
  bool is_wrong;
};

}  // namespace lockstep::test

template <>
struct lockstep::ObjectCodec<lockstep::test::Unsendable> {
  static void encode(const test::Unsendable& value, ObjectWriter& writer) {
    TORCH_CHECK(!value.is_wrong, "this value has no bytes");  // with a stack trace, which is not for the others
    writer.put(value.is_wrong);
  }
  static test::Unsendable decode(ObjectReader& reader) { return {reader.get<bool>()}; }
};

namespace lockstep::test {
namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 3));
};

template <typename T>
T there_and_back(const T& value) {
  return decode_object<T>(encode_object(value));
}

TEST(ObjectCodec, KeepsValues) {
  EXPECT_EQ(there_and_back(42), 42);
  EXPECT_EQ(there_and_back(std::string("a\0b", 3)), std::string("a\0b", 3));
  const std::map<std::string, std::vector<std::optional<int>>> nested{{"a", {1, std::nullopt}}, {"", {}}};
  EXPECT_EQ(there_and_back(nested), nested);
  const std::tuple<int, std::string, std::pair<double, bool>> mixed{1, "two", {3.5, true}};
  EXPECT_EQ(there_and_back(mixed), mixed);
  const std::tuple<std::set<int>, std::unordered_set<std::string>, std::array<std::string, 2>> sets{
      {3, 1}, {"x"}, {"a", "bc"}};
  EXPECT_EQ(there_and_back(sets), sets);
  EXPECT_EQ((there_and_back(std::unordered_map<int, std::array<int, 3>>{{1, {2, 3, 4}}})),
            (std::unordered_map<int, std::array<int, 3>>{{1, {2, 3, 4}}}));
  const Config config{"sgd", {0.1, 0.01}};
  EXPECT_EQ(there_and_back(config), config);
}

TEST(ObjectCodec, KeepsTensorsAndModules) {
  const torch::Tensor tensor = torch::arange(6).reshape({2, 3}).t();
  expect_equal(there_and_back(tensor), tensor, "strided");
  expect_equal(there_and_back(torch::ones({2, 0}, torch::kBFloat16)), torch::ones({2, 0}, torch::kBFloat16), "empty");
  EXPECT_FALSE(there_and_back(torch::Tensor()).defined());
  const c10::IValue value(std::vector<std::string>{"x", "y"});
  EXPECT_EQ(there_and_back(value), value);
  const auto net = std::make_shared<Net>();
  const auto made = there_and_back(net);
  EXPECT_NE(made, net);
  expect_equal(made->layer->weight, net->layer->weight, "module");
}

TEST(ObjectCodec, FillsTheFieldsOfAnObject) {
  Progress sent{.steps = 3, .host = "theirs"};
  Progress received{.host = "mine"};
  const at::Tensor weight = received.layer->weight;
  decode_object_into(encode_object(sent), received);
  EXPECT_TRUE(received.layer->weight.is_same(weight));
  expect_equal(weight, sent.layer->weight, "module in a struct");
  EXPECT_EQ(received.steps, 3);
  EXPECT_EQ(received.host, "mine");
  EXPECT_EQ(there_and_back(sent).host, "");
}

// Each rank has its own values; then all have rank 1's, in the same objects.
void check_modules(int rank) {
  torch::manual_seed(rank);
  torch::nn::Linear linear(2, 3);
  const at::Tensor weight = linear->weight;
  broadcast_object(linear, 1);
  EXPECT_TRUE(linear->weight.is_same(weight));
  torch::manual_seed(1);
  expect_equal(weight.detach(), torch::nn::Linear(2, 3)->weight.detach(), "linear");

  torch::manual_seed(rank);
  auto net = std::make_shared<Net>();
  const auto same = net;
  broadcast_object(net, 1);
  EXPECT_EQ(net, same);
  torch::manual_seed(1);
  expect_equal(net->layer->weight.detach(), Net().layer->weight.detach(), "shared_ptr");

  // The momentum after rank 1's first step is the gradient itself.
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::full_like(parameter, rank);
  optimizer.step();
  broadcast_object(optimizer, 1);
  const at::Tensor parameter = net->parameters().front();
  const auto& state =
      static_cast<const torch::optim::SGDParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
  expect_equal(state.momentum_buffer(), torch::ones_like(parameter), "momentum");
  // Memory that others see too, and a module of another shape.
  torch::nn::Linear shared(2, 3);
  const at::Tensor flat = torch::zeros({6});
  shared->weight.set_data(flat.view({3, 2}));
  broadcast_object(shared, 0);
  EXPECT_TRUE(torch::equal(flat.view({3, 2}), shared->weight.detach()));
  EXPECT_EQ(shared->weight.data_ptr(), flat.data_ptr());
  torch::nn::Linear other(rank == 0 ? 4 : 2, 3);
  const at::Tensor before = other->weight.detach().clone();
  if (rank == 1) {
    EXPECT_THROW(broadcast_object(other, 0), c10::ValueError);
  } else {
    broadcast_object(other, 0);
  }
  EXPECT_TRUE(torch::equal(before, other->weight.detach()));
  std::shared_ptr<Net> none;
  if (rank == 0) {
    EXPECT_THROW(broadcast_object(none, 0), c10::Error);
  }
}

TEST(ObjectsMulti, ModulesAndOptimizersAreFilled) {
  run_world(2, check_modules);
}

TEST(ObjectCodec, AnotherTypeIsAnError) {
  expect_error(ErrorCode::kInvalidArgument, {"same type"}, [] { decode_object<double>(encode_object(1)); });
  expect_error(ErrorCode::kInvalidArgument, {"4 bytes too many"}, [] { decode_object<int>(encode_object(1L)); });
}

void check_objects(int rank) {
  std::string text = rank == 1 ? std::string(5000, 'x') : "to be replaced";
  broadcast_object(text, 1);
  EXPECT_EQ(text, std::string(5000, 'x'));

  const std::vector<Config> all = all_gather_object(Config{std::string(rank, 'r'), {rank * 0.5}});
  ASSERT_EQ(all.size(), 3U);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(all[r], (Config{std::string(r, 'r'), {r * 0.5}}));

  // Shapes that the other ranks do not know.
  const auto tensors = gather_object(torch::full({rank, 2}, rank), 2);
  ASSERT_EQ(tensors.size(), rank == 2 ? 3U : 0U);
  for (std::size_t r = 0; r < tensors.size(); ++r) {
    expect_equal(tensors[r], torch::full({static_cast<int>(r), 2}, static_cast<int>(r)), "gathered");
  }
  const std::vector<std::string> parts =
      rank == 0 ? std::vector<std::string>{"", "b", "cc"} : std::vector<std::string>();
  EXPECT_EQ(scatter_object(parts, 0), std::vector<std::string>({"", "b", "cc"})[rank]);

  if (rank > 0) {
    const ProcessGroup pair = new_group({1, 2});
    EXPECT_EQ(all_gather_object(rank * 10, {.group = pair}), (std::vector<int>{10, 20}));
  }
  barrier();
}

TEST(ObjectsMulti, OfThreeRanks) {
  run_world(3, check_objects);
}

// Sizes and types that the receivers do not know, in a ring; then to one rank from whoever is first.
void check_messages(int rank) {
  const std::string mine(static_cast<std::size_t>(rank) * 100000, 'x');
  const int next = (rank + 1) % 3;
  const int previous = (rank + 2) % 3;
  using Record = std::tuple<std::string, std::vector<int>, torch::Tensor>;
  const Record sent{mine, {rank, -rank}, torch::full({rank, 2}, rank)};
  Record got;
  if (rank > 0) send_object(sent, next, {.tag = 3});
  EXPECT_EQ(recv_object(got, previous, {.tag = 3}), previous);
  if (rank == 0) send_object(sent, next, {.tag = 3});
  EXPECT_EQ(std::get<0>(got).size(), static_cast<std::size_t>(previous) * 100000);
  EXPECT_EQ(std::get<1>(got), (std::vector<int>{previous, -previous}));
  expect_equal(std::get<2>(got), torch::full({previous, 2}, previous), "a tensor in an object");

  if (rank > 0) {
    for (int i = 0; i < 5; ++i) send_object(std::string(static_cast<std::size_t>(rank), 'a' + static_cast<char>(i)), 0);
    return;
  }
  std::array<int, 3> seen{};
  for (int i = 0; i < 10; ++i) {
    std::string text;
    const int sender = recv_object(text);
    EXPECT_EQ(text, std::string(static_cast<std::size_t>(sender), 'a' + static_cast<char>(seen[sender]++)));
  }
  EXPECT_EQ(seen, (std::array<int, 3>{0, 5, 5}));
}

// Group ranks differ from those of the world; a module is filled in place; another type is an error.
void check_messages_in_a_group(int rank) {
  if (rank == 0) return;
  const ProcessGroup pair = new_group({1, 2});
  torch::nn::Linear linear(2, 3);
  const at::Tensor weight = linear->weight;
  if (rank == 2) {
    torch::NoGradGuard no_grad;
    weight.fill_(7);
    send_object(linear, 1, {.group = pair});
    send_object(1, 1, {.group = pair});
    send(torch::tensor({std::int64_t{-1}}), 1, {.group = pair});
    return;
  }
  EXPECT_EQ(recv_object(linear, kAnySource, {.group = pair}), 2);
  EXPECT_TRUE(linear->weight.is_same(weight));
  expect_equal(weight.detach(), torch::full({3, 2}, 7.0F), "module");
  double number = 0;
  expect_error(ErrorCode::kInvalidArgument, {"same type"}, [&] { recv_object(number, 2, {.group = pair}); });
  expect_error(ErrorCode::kInvalidArgument, {"rank 2", "tag 0", "send_object"},
               [&] { recv_object(number, 2, {.group = pair}); });
}

TEST(ObjectsMulti, AsMessages) {
  run_world(3, [](int rank) {
    check_messages(rank);
    barrier();
    check_messages_in_a_group(rank);
    barrier();
  });
}

// One rank cannot take part: the others are told at once, and the group stays usable.
TEST(ObjectsMulti, WhatARankCannotSendIsToldToAll) {
  constexpr int kWorld = 3;
  run_world(kWorld, [](int rank) {
    const std::vector<Unsendable> none;
    const auto expect_told = [&](int wrong, const std::string& why, const std::function<void()>& call) {
      SCOPED_TRACE(why);
      if (rank == wrong) {
        EXPECT_THROW(call(), std::exception);
      } else {
        expect_error(ErrorCode::kMismatch, {fmt::format("rank(s) {} could not take part", wrong), why}, call);
      }
      EXPECT_EQ(all_gather_object(rank), (std::vector<int>{0, 1, 2}));
    };
    Unsendable value{rank == 1};
    expect_told(1, "no bytes (called at", [&] { broadcast_object(value, 1); });
    expect_told(1, "no bytes (called at", [&] { all_gather_object(value); });
    expect_told(1, "no bytes (called at", [&] { gather_object(value, 0); });
    expect_told(1, "no bytes (called at",
                [&] { scatter_object(rank == 1 ? std::vector<Unsendable>(kWorld, value) : none, 1); });
    expect_told(0, "one per rank of the group) values, found 1",
                [&] { scatter_object(rank == 0 ? std::vector<int>{1} : std::vector<int>(), 0); });
    expect_told(2, "must give no values, found 1", [&] {
      scatter_object(rank == 0 ? std::vector<int>{1, 2, 3} : std::vector<int>(rank / 2, 1), 0);
    });
    const ProcessGroup pair = new_group({1, 2});
    const auto call = [&] { all_gather_object(value, {.group = pair}); };
    if (rank == 1) {
      EXPECT_THROW(call(), std::exception);
    }
    // Also by a rank that leaves right after.
    if (rank == 2) expect_error(ErrorCode::kMismatch, {"no bytes"}, call);
  });
}

}  // namespace
}  // namespace lockstep::test
