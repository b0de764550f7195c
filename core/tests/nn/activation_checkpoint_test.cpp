// Activation checkpointing alone: the same gradients as without, with everything that surrounds a segment. Under
// DistributedDataParallel: ddp_checkpointing_test.cpp. Less than a second.
#include "lockstep/nn/activation_checkpoint.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/nn/mixed_precision.h"
#include "nn/error_texts.h"

namespace lockstep::test {
namespace {

using torch::Tensor;

// The gradients of `parameters` and `x` of loss(x), with the random numbers of seed 3.
std::vector<Tensor> gradients_of(const std::function<Tensor(const Tensor&)>& loss, const Tensor& x,
                                 const std::vector<Tensor>& parameters) {
  for (const Tensor& one : parameters) one.mutable_grad().reset();
  const Tensor input = x.detach().requires_grad_(x.requires_grad());
  torch::manual_seed(3);
  const Tensor value = loss(input);
  torch::rand({7});  // draws before the backward pass do not matter
  value.backward();
  std::vector<Tensor> result{torch::rand({2})};  // neither does the backward pass matter to later draws
  for (const Tensor& one : parameters) result.push_back(one.grad());
  if (x.requires_grad()) result.push_back(input.grad());
  return result;
}

void expect_same(const std::vector<Tensor>& ours, const std::vector<Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << i;
}

TEST(ActivationCheckpoint, KeepsGeneratorsAndAutocast) {
  torch::nn::Sequential block(torch::nn::Linear(6, 8), torch::nn::Dropout(0.4), torch::nn::Linear(8, 3));
  for (const bool half : {false, true}) {
    for (const bool needs : {false, true}) {
      const Tensor x = torch::randn({5, 6}).requires_grad_(needs);
      std::optional<torch::Dtype> seen;
      const auto loss = [&](bool kept) {
        return [&, kept](const Tensor& input) {
          std::optional<Autocast> autocast;
          if (half) autocast.emplace(torch::kCPU);
          const auto segment = [&](const Tensor& value) {
            const Tensor y = block->forward(value);
            EXPECT_EQ(y.scalar_type(), half ? torch::kBFloat16 : torch::kFloat);
            return y;
          };
          return (kept ? activation_checkpoint(segment, input) : segment(input)).square().sum();
        };
      };
      expect_same(gradients_of(loss(true), x, block->parameters()), gradients_of(loss(false), x, block->parameters()));
    }
  }
}

// Autocast keeps its casts of parameters for its whole scope. The weight is used before the segment, in it, in a
// segment inside it, and after it. Values are small integers, so that sums are exact in any order.
TEST(ActivationCheckpoint, GivesAllGradientsOfAWeightThatIsAlsoUsedOutsideUnderAutocast) {
  const Tensor weight = torch::randint(-1, 2, {4, 4}).to(torch::kFloat).requires_grad_();
  const Tensor x = torch::randint(-1, 2, {2, 4}).to(torch::kFloat).requires_grad_();
  const auto times = [&](const Tensor& value) { return torch::mm(value, weight); };
  const auto gradients = [&](int depth, bool before, bool backward_inside) {
    weight.mutable_grad().reset();
    x.mutable_grad().reset();
    std::function<Tensor(const Tensor&)> block = times;
    if (depth > 0) block = [&](const Tensor& value) { return activation_checkpoint(times, value); };
    if (depth > 1) {
      block = [&, inner = block](const Tensor& value) {
        return activation_checkpoint([inner](const Tensor& one) { return inner(one); }, value);
      };
    }
    Tensor loss;
    {
      const Autocast autocast(torch::kCPU);
      loss = (before ? times(x) : x).sum() + block(x).sum() + times(x).sum();
      if (backward_inside) loss.backward();
    }
    if (!backward_inside) loss.backward();
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    return std::vector<Tensor>{weight.grad(), x.grad()};
  };
  for (const bool before : {false, true}) {
    const auto plain = gradients(0, before, /*backward_inside=*/false);
    for (const int depth : {1, 2}) {
      for (const bool backward_inside : {false, true}) expect_same(gradients(depth, before, backward_inside), plain);
    }
  }
}

TEST(ActivationCheckpoint, TakesAndReturnsSeveralTensorsAndNests) {
  torch::nn::Embedding table(10, 4);
  torch::nn::Linear line(4, 4);
  std::vector<Tensor> parameters = table->parameters();
  for (const Tensor& one : line->parameters()) parameters.push_back(one);
  const Tensor index = torch::tensor({1, 4, 4}, torch::kLong);
  const auto loss = [&](bool kept) {
    return [&, kept](const Tensor& x) {
      const auto inner = [&](const Tensor& value) { return torch::tanh(line(value)); };
      const auto outer = [&, kept, inner](const Tensor& which, const Tensor& value) {
        const Tensor rows = table(which) + value;
        return std::vector<Tensor>{kept ? activation_checkpoint(inner, rows) : inner(rows), rows.sum(), which};
      };
      const auto out = kept ? activation_checkpoint(outer, index, x) : outer(index, x);
      return out[0].square().sum() + out[1];
    };
  };
  const Tensor x = torch::randn({3, 4}).requires_grad_();
  expect_same(gradients_of(loss(true), x, parameters), gradients_of(loss(false), x, parameters));
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(activation_checkpoint([&](const Tensor& value) { return line(value); }, x).requires_grad());
}

TEST(ActivationCheckpoint, RefusesBackwardPassesThatMissTheSegmentOrFillOtherGradients) {
  torch::nn::Linear line(4, 4);
  const Tensor x = torch::randn({3, 4}).requires_grad_();
  const auto loss = [&] {
    const auto inner = [&](const Tensor& value) { return torch::tanh(line(value)); };
    return activation_checkpoint([inner](const Tensor& value) { return activation_checkpoint(inner, value); }, x).sum();
  };
  expect_in(error_of([&] { loss().backward({}, /*retain_graph=*/true, /*create_graph=*/true); }), {"create_graph"});
  expect_in(error_of([&] { torch::autograd::grad({loss()}, {x}); }), {"single tensors", "without inputs"});
  expect_in(error_of([&] { loss().backward({}, std::nullopt, false, std::vector<Tensor>{x}); }), {"single tensors"});
  EXPECT_FALSE(line->weight.grad().defined());
  expect_in(error_of([&] { activation_checkpoint([](const Tensor&, const Tensor& y) { return y; }, x, Tensor()); }),
            {"input 1 of the segment is an undefined tensor"});
  for (const bool needs : {false, true}) {
    const Tensor input = torch::randn({3, 4}).requires_grad_(needs) + 0;
    expect_in(error_of([&] { activation_checkpoint([&](Tensor y) { return line(y.mul_(0.5)); }, input); }),
              {"has written to input 0", "clone()"});
  }
  expect_in(error_of([&] { activation_checkpoint([](const Tensor&) { return Tensor(); }, x); }), {"output 0"});
  loss().backward();
  EXPECT_TRUE(line->weight.grad().defined());
}

}  // namespace
}  // namespace lockstep::test
