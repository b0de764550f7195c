// DataParallel gives what the same model gives on one device: LibTorch on the whole batch is the judge.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <mutex>

#include "nn/data_parallel_models.h"
#include "nn/error_texts.h"
#include "support/process.h"

namespace lockstep::test {
namespace {

struct Inputs {
  torch::Tensor images, ids;
};
Inputs inputs(std::int64_t rows, int step = 0) {
  torch::manual_seed(100 + step);
  return {torch::randn({rows, 1, 4, 4}, torch::kDouble), torch::randint(0, 10, {rows}, torch::kLong)};
}

// Says how many rows each call got.
struct RowsImpl : torch::nn::Cloneable<RowsImpl> {
  RowsImpl() { reset(); }
  void reset() override { line = register_module("line", torch::nn::Linear(2, 3)); }
  torch::Tensor forward(const torch::Tensor& x) {
    const std::scoped_lock lock(*mutex);
    rows->push_back(x.size(0));
    return line(x);
  }
  torch::nn::Linear line{nullptr};
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::vector<std::int64_t>> rows = std::make_shared<std::vector<std::int64_t>>();
};
TORCH_MODULE(Rows);

std::vector<std::int64_t> rows_on(std::int64_t rows, int replicas) {
  Rows net;
  DataParallel<Rows> parallel(net, {.cpu_replicas = replicas});
  const torch::Tensor output = parallel.forward(torch::zeros({rows, 2}));
  EXPECT_EQ(output.size(0), rows);
  std::sort(net->rows->rbegin(), net->rows->rend());
  return *net->rows;
}

TEST(DataParallel, SplitsBatches) {
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(rows_on(30, 1), (Sizes{30}));
  EXPECT_EQ(rows_on(30, 2), (Sizes{15, 15}));
  EXPECT_EQ(rows_on(30, 3), (Sizes{10, 10, 10}));
  EXPECT_EQ(rows_on(31, 3), (Sizes{11, 11, 9}));
  EXPECT_EQ(rows_on(4, 3), (Sizes{2, 2}));
  EXPECT_EQ(rows_on(1, 3), (Sizes{1}));
  EXPECT_EQ(rows_on(0, 2), (Sizes{0, 0}));
}

class DataParallelOn : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Replicas, DataParallelOn, testing::Values(1, 2, 3, 5));

TEST_P(DataParallelOn, GivesTheGradientsOfOneDevice) {
  Mixed net = seeded<Mixed>();
  Mixed alone = seeded<Mixed>();
  DataParallel<Mixed> parallel(net, {.cpu_replicas = GetParam()});
  for (const std::int64_t rows : {30, 13, 2, 1}) {
    Inputs in = inputs(rows);
    torch::Tensor gradients[2];
    for (const bool is_parallel : {true, false}) {
      Mixed& model = is_parallel ? net : alone;
      model->zero_grad();
      const torch::Tensor images = in.images.clone().requires_grad_();
      const auto [y, squares] = is_parallel ? parallel.forward(images * 2, in.ids) : model->forward(images * 2, in.ids);
      EXPECT_EQ(y.size(0), rows);
      (y.sum() + squares.mean()).backward();
      gradients[is_parallel ? 0 : 1] = images.grad();
    }
    const std::string where = std::to_string(rows) + " rows";
    expect_close_models(*net, *alone, 1e-12, where);
    expect_close(gradients[0], gradients[1], 1e-12, where + ": gradient of the input");
    EXPECT_FALSE(net->unused.grad().defined());
  }
}

// One row: one replica runs, and its gradients of the two addends are one tensor.
struct AddendsImpl : torch::nn::Cloneable<AddendsImpl> {
  AddendsImpl() { reset(); }
  void reset() override {
    weight = register_parameter("weight", torch::ones({3, 2}));
    change = register_parameter("change", torch::zeros({3, 2}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight + change); }
  torch::Tensor weight, change;
};
TORCH_MODULE(Addends);

TEST_P(DataParallelOn, GivesEachParameterAGradientOfItsOwn) {
  Addends net;
  DataParallel<Addends> parallel(net, {.cpu_replicas = GetParam()});
  const torch::Tensor x = torch::tensor({{1.F, 2.F}});
  for (int pass = 0; pass < 2; ++pass) parallel.forward(x).sum().backward();
  EXPECT_FALSE(net->weight.grad().is_alias_of(net->change.grad()));
  EXPECT_TRUE(net->weight.grad().equal((2 * x).expand({3, 2}))) << net->weight.grad();
  EXPECT_TRUE(net->change.grad().equal(net->weight.grad()));
}

// In double, with momentum: rounding is all that differs, and in float 20 steps could magnify it beyond any fixed
// bound.
TEST_P(DataParallelOn, TrainsLikeOneDevice) {
  const auto make = [] {
    torch::manual_seed(3);
    torch::nn::Sequential made(torch::nn::Linear(20, 40), torch::nn::Tanh(), torch::nn::Linear(40, 5));
    made->to(torch::kDouble);
    return made;
  };
  torch::nn::Sequential net = make(), alone = make();
  DataParallel<torch::nn::Sequential> parallel(net, {.cpu_replicas = GetParam()});
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3);
  torch::optim::SGD ours(parallel.parameters(), options), theirs(alone->parameters(), options);
  for (int step = 0; step < 20; ++step) {
    torch::manual_seed(step);
    const std::int64_t rows = 17 + step % 3;
    const torch::Tensor x = torch::randn({rows, 20}, torch::kDouble);
    const torch::Tensor labels = torch::randint(0, 5, {rows}, torch::kLong);
    ours.zero_grad();
    theirs.zero_grad();
    torch::cross_entropy_loss(parallel.forward(x), labels).backward();
    torch::cross_entropy_loss(alone->forward(x), labels).backward();
    ours.step();
    theirs.step();
  }
  const auto mine = net->named_parameters();
  for (const auto& item : alone->named_parameters()) expect_close(mine[item.key()], item.value(), 1e-13, item.key());
}

// Passes that overlap: two before one backward, one graph twice, parts of the gradients, a gradient of a gradient.
TEST(DataParallel, KeepsGraphsApart) {
  Mixed net = seeded<Mixed>();
  Mixed alone = seeded<Mixed>();
  const Inputs one = inputs(7, 1), two = inputs(4, 2);
  {
    DataParallel<Mixed> parallel(net, {.cpu_replicas = 3});
    const torch::Tensor first = parallel.forward(one.images, one.ids).first.sum();
    const torch::Tensor second = parallel.forward(two.images, two.ids).second.sum();
    (first * second).backward({}, /*retain_graph=*/true);
    (first * second).backward({}, /*retain_graph=*/true);
    const auto some = torch::autograd::grad({first}, {net->square->bias}, {}, /*retain_graph=*/false);
    EXPECT_EQ(some.size(), 1U);
    expect_in(error_of([&] { first.backward(); }), {"freed by an earlier backward pass", "retain_graph"});
    net->zero_grad();
  }
  torch::Tensor outlives;
  {
    DataParallel<Mixed> parallel(net, {.cpu_replicas = 2});
    outlives = (parallel.forward(one.images, one.ids).first * parallel.forward(one.images, one.ids).first).sum();
  }
  outlives.backward();
  (alone->forward(one.images, one.ids).first * alone->forward(one.images, one.ids).first).sum().backward();
  expect_close_models(*net, *alone, 1e-12, "after the wrapper");
}

TEST(DataParallel, DifferentiatesTwice) {
  Mixed net = seeded<Mixed>();
  Mixed alone = seeded<Mixed>();
  DataParallel<Mixed> parallel(net, {.cpu_replicas = 3});
  const Inputs in = inputs(7);
  // A gradient penalty.
  const auto loss = [&](const auto& forward) {
    const torch::Tensor images = in.images.clone().requires_grad_();
    const torch::Tensor output = forward(images).square();
    const torch::Tensor slope =
        torch::autograd::grad({output.sum()}, {images}, {}, /*retain_graph=*/true, /*create_graph=*/true).front();
    (slope.flatten(1).norm(2, 1).square().mean() + output.mean()).backward();
    return images.grad();
  };
  const torch::Tensor ours = loss([&](const torch::Tensor& x) { return parallel.forward(x, in.ids).second; });
  const torch::Tensor theirs = loss([&](const torch::Tensor& x) { return alone->forward(x, in.ids).second; });
  expect_close(ours, theirs, 1e-12, "gradient of the input");
  expect_close_models(*net, *alone, 1e-12, "gradient penalty");
}

TEST(DataParallel, CallsHooksWithTheSum) {
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  DataParallel<torch::nn::Linear> parallel(net, {.cpu_replicas = 2});
  int calls = 0;
  net->weight.register_hook([&](const torch::Tensor& gradient) {
    ++calls;
    return gradient * 10;
  });
  const torch::Tensor x = torch::ones({4, 2});
  parallel.forward(x).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 2}, 40.)));
  parallel.forward(x).sum().backward();
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({1, 2}, 80.))) << "gradients add up";
}

TEST(DataParallel, KeepsTheFirstReplicasBuffers) {
  torch::nn::BatchNorm1d net(3), first_part(3);
  DataParallel<torch::nn::BatchNorm1d> parallel(net, {.cpu_replicas = 2});
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor x = torch::randn({7, 3});
    const torch::Tensor y = parallel.forward(x);
    const torch::Tensor other = parallel.forward(x);  // an update of buffers between passes is no error
    expect_close(y.slice(0, 0, 4), first_part(x.slice(0, 0, 4)), 1e-6, "normalised by its own part");
    first_part(x.slice(0, 0, 4));
    (y.square() + other).sum().backward();
  }
  for (const auto& item : first_part->named_buffers())
    expect_close(net->named_buffers()[item.key()].to(torch::kDouble), item.value().to(torch::kDouble), 1e-6,
                 item.key());

  net->eval();
  first_part->eval();
  net->running_mean.fill_(3);
  first_part->running_mean.fill_(3);
  const torch::Tensor x = torch::randn({7, 3});
  expect_close(parallel.forward(x), first_part(x), 1e-6, "all replicas see the buffers");
}

// What the program does to the module after it has been wrapped.
TEST(DataParallel, FollowsTheModule) {
  Mixed net = seeded<Mixed>();
  DataParallel<Mixed> parallel(net, {.cpu_replicas = 2});
  const Inputs in = inputs(6);
  const auto expect_same = [&](const std::string& what) {
    Mixed alone;
    const torch::NoGradGuard no_grad;
    for (auto& item : alone->named_parameters()) item.value().set_data(net->named_parameters()[item.key()].clone());
    const torch::Tensor images = in.images.to(net->frozen.scalar_type());
    expect_close(parallel.forward(images, in.ids).first, alone->forward(images, in.ids).first, 1e-6, what);
  };
  {
    const torch::NoGradGuard no_grad;
    net->square->bias.add_(1);
    expect_same("in place");
    net->square->bias.set_data(torch::randn({16}, torch::kDouble));
    expect_same("set_data");
    net->to(torch::kFloat);
    expect_same("dtype");
    net->to(torch::kDouble);
  }
  net->convolution->weight.set_requires_grad(false);
  net->zero_grad();
  parallel.forward(in.images, in.ids).first.sum().backward();
  EXPECT_FALSE(net->convolution->weight.grad().defined()) << "frozen";
  EXPECT_TRUE(net->convolution->bias.grad().defined());

  const torch::Tensor output = parallel.forward(in.images, in.ids).first.sum();
  {
    const torch::NoGradGuard no_grad;
    net->square->weight.add_(1);
  }
  expect_in(error_of([&] { output.backward(); }), {"modified by an inplace operation", "replica"});

  // A replaced submodule: new replicas are made, but the clone has the structure that reset() gives.
  net->square->bias = net->square->register_parameter("extra", torch::zeros({16}, torch::kDouble));
  expect_in(error_of([&] { parallel.forward(in.images, in.ids); }), {"same number of parameters", "reset()"});
}

// They have no parameters by which one could tell.
TEST(DataParallel, TakesOverLayersThatWereAdded) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3));
  DataParallel<torch::nn::Sequential> parallel(net, {.cpu_replicas = 2});
  const torch::Tensor x = torch::randn({4, 2});
  expect_close(parallel.forward(x), net->forward(x), 1e-6, "as it was wrapped");
  net->push_back(torch::nn::Tanh());
  expect_close(parallel.forward(x), net->forward(x), 1e-6, "with one layer more");
}

TEST(DataParallel, LeavesRandomNumbersAlone) {
  torch::manual_seed(5);
  const torch::Tensor expected = torch::rand({3});
  Rows net;
  torch::manual_seed(5);
  const DataParallel<Rows> parallel(net, {.cpu_replicas = 3});
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

// Any signature, any entry, any result.
struct StepImpl : torch::nn::Cloneable<StepImpl> {
  StepImpl() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({2})); }
  void forward(std::atomic<int>* calls) const { ++*calls; }
  torch::Tensor loss(const std::map<std::string, torch::Tensor>& batch, double scale, torch::Tensor mask,
                     const char* text) const {
    EXPECT_STREQ(text, "text");
    EXPECT_EQ(mask.size(0), 2) << "whole on every replica";
    return (batch.at("x") * weight * scale * mask).sum();
  }
  std::tuple<int, std::optional<torch::Tensor>, std::vector<torch::Tensor>> results(torch::Tensor x,
                                                                                    bool differ) const {
    x.add_(1);  // in place, also where its gradient is wanted
    return {differ ? static_cast<int>(x[0][0].item<double>()) : 3, std::nullopt, {x * weight, x.argmax(1)}};
  }
  torch::Tensor weight;
};
TORCH_MODULE(Step);

TEST(DataParallel, TakesAnySignature) {
  Step net;
  DataParallel<Step> parallel(net, {.cpu_replicas = 2});
  std::atomic<int> calls = 0;
  parallel.forward(parallel::replicated(&calls));
  EXPECT_EQ(calls, 1) << "nothing to split: the first replica alone";

  const std::map<std::string, torch::Tensor> batch{{"x", torch::ones({4, 2})}};
  const torch::Tensor mask = torch::ones({2}, torch::requires_grad());
  const torch::Tensor losses = parallel.apply(&StepImpl::loss, batch, 2.0, parallel::replicated(mask), "text");
  EXPECT_TRUE(torch::equal(losses, torch::tensor({8., 8.}))) << "a loss becomes one element for each replica";
  losses.mean().backward();
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({2}, 4.)));
  EXPECT_TRUE(torch::equal(mask.grad(), torch::full({2}, 4.)));

  const torch::Tensor x = torch::zeros({3, 2}, torch::requires_grad());
  const auto [number, nothing, tensors] = parallel.apply(&StepImpl::results, x * 1, false);
  EXPECT_EQ(number, 3);
  EXPECT_FALSE(nothing);
  EXPECT_EQ(tensors[1].sizes(), torch::IntArrayRef({3}));
  tensors[0].sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::ones({3, 2})));
  expect_in(error_of([&] {
              parallel.apply(&StepImpl::results, torch::arange(6.).view({3, 2}), true);
            }),
            {"result[0]: the results of replica 0 and replica 1 cannot be put together", "as a tensor"});
  expect_in(error_of([&] {
              parallel.apply(&StepImpl::loss,
                             std::map<std::string, torch::Tensor>{{"x", torch::ones({4, 2})}, {"y", torch::ones({3})}},
                             2.0, mask, "text");
            }),
            {"argument 0, 'y': has 3 rows in dimension 0, but argument 0, 'x' has 4", "replicated"});
}

struct Detection {
  torch::Tensor boxes, masks;
  std::int64_t found = 0;
};
auto fields(Detection& detection) {
  return std::tie(detection.boxes, detection.masks, detection.found);
}

struct DetectorImpl : torch::nn::Cloneable<DetectorImpl> {
  DetectorImpl() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({2})); }
  torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
  Detection detect(const torch::Tensor& x) {
    const torch::Tensor y = x * weight;
    return {y, x[0][0].item<double>() < 0 ? y * 2 : torch::Tensor(), 0};
  }
  Detection count(const torch::Tensor& x) { return {x * weight, torch::Tensor(), x[0][0].item<double>() < 0 ? 1 : 0}; }
  std::variant<std::vector<torch::Tensor>, torch::Tensor> several(const torch::Tensor& x) {
    return std::vector<torch::Tensor>(x[0][0].item<double>() < 0 ? 2 : 1, x * weight);
  }
  torch::Tensor weight;
};
TORCH_MODULE(Detector);

TEST(DataParallel, NamesWhatOneReplicaAloneReturnsInsideAStructOrVariant) {
  DataParallel<Detector> parallel(Detector(), {.cpu_replicas = 2});
  const torch::Tensor x = torch::tensor({{1., 1.}, {-1., -1.}}).to(torch::kFloat);
  EXPECT_TRUE(parallel.apply(&DetectorImpl::detect, x.abs()).boxes.equal(x.abs()));
  expect_in(error_of([&] { parallel.apply(&DetectorImpl::detect, x); }),
            {"result, field 1", "replica 0 and replica 1", "undefined"});
  expect_in(error_of([&] { parallel.apply(&DetectorImpl::count, x); }), {"result, field 2", "another value"});
  expect_in(error_of([&] { parallel.apply(&DetectorImpl::several, x); }),
            {"result", "replica 0 and replica 1", "another number of values"});
}

// Changes its input and a buffer in place, and needs both in its backward pass. Negative rows come after the others.
struct InPlaceImpl : torch::nn::Cloneable<InPlaceImpl> {
  InPlaceImpl() { reset(); }
  void reset() override {
    weight = register_parameter("weight", torch::ones({2}));
    scale = register_buffer("scale", torch::ones({2}));
  }
  torch::Tensor forward(torch::Tensor x) {
    const bool second = x[0][0].item<float>() < 0;
    if (second) {
      // Not a std::counting_semaphore: the one of gcc 12 loses wake-ups.
      TORCH_CHECK(wait_for([&] { return first_is_done->exchange(false); }), "the other replica is not done");
    }
    scale.add_(1);
    x.mul_(3);
    const torch::Tensor y = x * weight * scale;
    if (!second) first_is_done->store(true);
    return y;
  }
  torch::Tensor weight, scale;
  std::shared_ptr<std::atomic<bool>> first_is_done = std::make_shared<std::atomic<bool>>(false);
};
TORCH_MODULE(InPlace);

TEST(DataParallel, LetsReplicasChangeTheirPartsInPlace) {
  InPlace net;
  DataParallel<InPlace> parallel(net, {.cpu_replicas = 2});
  const torch::Tensor x = torch::tensor({1., 1., -2., -2.}).view({2, 2});
  parallel.forward(x).sum().backward();
  EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({2}, 2. * (3 - 6))));
  EXPECT_TRUE(torch::equal(net->scale, torch::full({2}, 2.)));
  EXPECT_TRUE(torch::equal(x, torch::tensor({3., 3., -6., -6.}).view({2, 2}))) << "as on one device";

  // The caller's graph notices it.
  const torch::Tensor before = torch::tensor({1., 1., -2., -2.}).view({2, 2}).requires_grad_();
  const torch::Tensor output = parallel.forward(torch::tanh(before)).sum();
  expect_in(error_of([&] { output.backward(); }), {"modified by an inplace operation"});

  // And the replicas' graphs notice what the caller does to the batch.
  torch::nn::Linear line(2, 2);
  DataParallel<torch::nn::Linear> plain(line, {.cpu_replicas = 2});
  const torch::Tensor batch = torch::ones({4, 2});
  const torch::Tensor sum = plain.forward(batch).sum();
  batch.zero_();
  expect_in(error_of([&] { sum.backward(); }), {"modified by an inplace operation", "replica"});
}

TEST(DataParallel, SplitsAlongAnyDimension) {
  torch::nn::Linear net(3, 2);
  DataParallel<torch::nn::Linear> parallel(net, {.dim = 1, .cpu_replicas = 2});
  const torch::Tensor x = torch::randn({4, 5, 3}, torch::requires_grad());
  parallel.forward(x).square().sum().backward();
  const torch::Tensor ours = x.grad().clone();
  x.mutable_grad() = torch::Tensor();
  net->forward(x).square().sum().backward();
  expect_close(ours, x.grad(), 1e-6, "gradient");
}

}  // namespace
}  // namespace lockstep::test
