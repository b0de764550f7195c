// use_fast_batch_norm(). The judge is LibTorch's own function, which at::native::batch_norm() reaches past the
// intercepted operator.
#include "lockstep/nn/fast_batch_norm.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/instruction_set.h"
#include "nn/batch_norm/channel_moments.h"
#include "nn/batch_norm/fast_batch_norm.h"

namespace lockstep::test {
namespace {

using torch::Tensor;

struct Layer {
  Tensor input, weight, bias, running_mean, running_var;
  double momentum = 0.1;

  Layer copy() const {
    const auto own = [](const Tensor& tensor) {
      return tensor.defined() ? tensor.detach().clone().requires_grad_(tensor.requires_grad()) : tensor;
    };
    return {own(input), own(weight), own(bias), own(running_mean), own(running_var), momentum};
  }
  Tensor by_libtorch() const {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, true, momentum, 1e-5, false);
  }
  Tensor by_operator() const {
    return at::batch_norm(input, weight, bias, running_mean, running_var, true, momentum, 1e-5, false);
  }
  bool is_fast() const {
    return nn_detail::suits_fast_batch_norm({input, weight, bias, running_mean, running_var, momentum, 1e-5});
  }
};

Layer layer_of(const std::vector<std::int64_t>& shape, bool affine = true, bool track = true) {
  Layer layer;
  layer.input = torch::randn(shape).mul_(3).add_(5).requires_grad_();
  const std::int64_t channels = shape[1];
  if (affine) {
    layer.weight = torch::randn({channels}).requires_grad_();
    layer.bias = torch::randn({channels}).requires_grad_();
  }
  if (track) {
    layer.running_mean = torch::randn({channels});
    layer.running_var = torch::rand({channels});
  }
  return layer;
}

void expect_close(const Tensor& mine, const Tensor& judge, const std::string& what) {
  ASSERT_EQ(mine.defined(), judge.defined()) << what;
  if (judge.defined()) {
    EXPECT_TRUE(torch::allclose(mine, judge, 1e-5, 1e-6))
        << what << ": apart by " << (mine - judge).abs().max().item<float>();
  }
}

// Values, running statistics and gradients, with `more` gradients of the gradient of the input.
void expect_like_libtorch(const Layer& mine, const std::string& what, bool second = false) {
  const Layer judge = mine.copy();
  const Tensor ours = mine.by_operator(), theirs = judge.by_libtorch();
  expect_close(ours, theirs, what + ": values");
  expect_close(mine.running_mean, judge.running_mean, what + ": running_mean");
  expect_close(mine.running_var, judge.running_var, what + ": running_var");
  const Tensor upstream = torch::randn_like(ours);
  const auto gradients = [&](const Layer& layer, const Tensor& output) {
    std::vector<Tensor> to;
    for (const Tensor& tensor : {layer.input, layer.weight, layer.bias}) {
      if (tensor.defined() && tensor.requires_grad()) to.push_back(tensor);
    }
    if (to.empty()) return std::vector<Tensor>();
    std::vector<Tensor> first = torch::autograd::grad({output}, to, {upstream}, /*retain_graph=*/second, second);
    if (!second) return first;
    Tensor sum = torch::zeros({});
    for (const Tensor& gradient : first) sum = sum + gradient.square().sum();
    to.pop_back();  // the bias is in none of them
    return torch::autograd::grad({sum}, to);
  };
  const std::vector<Tensor> found = gradients(mine, ours), wanted = gradients(judge, theirs);
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(torch::allclose(found[i], wanted[i], 1e-4, 1e-4 * wanted[i].abs().max().item<float>()))
        << what << ": gradient " << i;
  }
}

TEST(FastBatchNorm, IsLibTorchsInEveryShapeAndMode) {
  torch::manual_seed(1);
  use_fast_batch_norm();
  const std::vector<std::vector<std::int64_t>> shapes = {{4, 3, 16},      {1, 5, 33},      {3, 8, 5, 7}, {2, 64, 8, 8},
                                                         {16, 4, 32, 32}, {2, 3, 2, 3, 4}, {5, 1, 4, 4}};
  for (const auto& shape : shapes) {
    for (const bool affine : {true, false}) {
      for (const bool track : {true, false}) {
        const Layer layer = layer_of(shape, affine, track);
        ASSERT_TRUE(layer.is_fast());
        expect_like_libtorch(layer, c10::str(shape, affine ? ", affine" : "", track ? ", running" : ""));
      }
    }
  }
}

TEST(FastBatchNorm, GivesOnlyTheGradientsThatAreWanted) {
  torch::manual_seed(2);
  use_fast_batch_norm();
  for (int wanted = 0; wanted < 8; ++wanted) {
    Layer layer = layer_of({4, 3, 5, 5});
    layer.input.requires_grad_((wanted & 1) != 0);
    layer.weight.requires_grad_((wanted & 2) != 0);
    layer.bias.requires_grad_((wanted & 4) != 0);
    expect_like_libtorch(layer, c10::str("wanted ", wanted));
  }
  const Layer layer = layer_of({4, 3, 5, 5});
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(layer.by_operator().requires_grad());
  }
  const at::AutoDispatchBelowAutograd below;  // as in a kernel of somebody else
  EXPECT_FALSE(layer.by_operator().requires_grad());
}

TEST(FastBatchNorm, HasSecondDerivatives) {
  torch::manual_seed(3);
  use_fast_batch_norm();
  expect_like_libtorch(layer_of({4, 3, 5, 5}), "second derivatives", /*second=*/true);
}

TEST(FastBatchNorm, TakesEveryMomentumAndCountsAsAChangeOfRunningStatistics) {
  torch::manual_seed(4);
  use_fast_batch_norm();
  for (const double momentum : {0.0, 0.5, 1.0}) {
    Layer layer = layer_of({4, 3, 5, 5});
    layer.momentum = momentum;
    const auto before = layer.running_mean._version();
    expect_like_libtorch(layer, c10::str("momentum ", momentum));
    EXPECT_GT(layer.running_mean._version(), before);
  }
}

TEST(FastBatchNorm, SharesTheWorkOfManyThreads) {
  torch::manual_seed(5);
  use_fast_batch_norm();
  const Layer layer = layer_of({4, 37, 9, 9});
  const Layer again = layer.copy();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Tensor alone = layer.by_operator();
  at::set_num_threads(3);
  EXPECT_TRUE(torch::equal(again.by_operator(), alone));
  EXPECT_TRUE(torch::equal(again.running_var, layer.running_var));
  at::set_num_threads(threads);
}

TEST(FastBatchNorm, LeavesToLibTorchWhatIsUnusual) {
  torch::manual_seed(6);
  use_fast_batch_norm();
  const Layer usual = layer_of({4, 3, 5, 5});
  ASSERT_TRUE(usual.is_fast());
  const auto expect_left = [&](const char* what, const std::function<void(Layer&)>& change) {
    Layer layer = usual.copy();
    change(layer);
    EXPECT_FALSE(layer.is_fast()) << what;
  };
  expect_left("double", [](Layer& layer) { layer.input = layer.input.detach().to(torch::kDouble); });
  expect_left("half", [](Layer& layer) { layer.input = layer.input.detach().to(torch::kHalf); });
  expect_left("channels last",
              [](Layer& layer) { layer.input = layer.input.detach().contiguous(at::MemoryFormat::ChannelsLast); });
  expect_left("rows", [](Layer& layer) { layer.input = torch::randn({40, 3}); });
  expect_left("few values", [](Layer& layer) { layer.input = torch::randn({40, 3, 3}); });
  expect_left("no sample", [](Layer& layer) { layer.input = torch::randn({0, 3, 5, 5}); });
  expect_left("another number of weights", [](Layer& layer) { layer.weight = torch::randn({4}); });
  expect_left("a weight of doubles", [](Layer& layer) { layer.weight = torch::randn({3}, torch::kDouble); });
  expect_left("running statistics of doubles",
              [](Layer& layer) { layer.running_var = torch::ones({3}, torch::kDouble); });
}

// What LibTorch refuses is refused as before.
TEST(FastBatchNorm, KeepsLibTorchsErrors) {
  use_fast_batch_norm();
  torch::nn::BatchNorm2d layer(3);
  EXPECT_THROW(layer->forward(torch::randn({2, 4, 8, 8})), c10::Error);
  EXPECT_THROW(layer->forward(torch::randn({2, 3, 8})), c10::Error);
  EXPECT_THROW(layer->forward(torch::randn({1, 3, 1, 1})), c10::Error);
  Tensor input = torch::randn({2, 3, 8, 8}).requires_grad_();
  const Tensor changed = input * 2;
  const Tensor output = layer->forward(changed);
  changed.add_(1);
  EXPECT_THROW(output.sum().backward(), c10::Error);  // a tensor that the backward pass needs was changed
}

// A layer that is still in training mode there, as LibTorch takes it too.
TEST(FastBatchNorm, WorksInInferenceMode) {
  torch::manual_seed(9);
  use_fast_batch_norm();
  const Layer usual = layer_of({4, 3, 5, 5});
  const c10::InferenceMode inference;
  for (const bool made_there : {false, true}) {
    const Layer mine = made_there ? layer_of({4, 3, 5, 5}) : usual, judge = mine.copy();
    expect_close(mine.by_operator(), judge.by_libtorch(), "values");
    expect_close(mine.running_var, judge.running_var, "running_var");
  }
}

TEST(FastBatchNorm, WorksUnderAutocast) {
  torch::manual_seed(10);
  use_fast_batch_norm();
  const Layer mine = layer_of({4, 3, 5, 5}), judge = mine.copy();
  at::autocast::set_autocast_enabled(torch::kCPU, true);
  const Tensor ours = mine.by_operator(), theirs = judge.by_libtorch();
  at::autocast::set_autocast_enabled(torch::kCPU, false);
  EXPECT_EQ(ours.scalar_type(), theirs.scalar_type());
  expect_close(ours, theirs, "values");
}

TEST(FastBatchNorm, EvaluatesWithRunningStatistics) {
  torch::manual_seed(7);
  use_fast_batch_norm();
  torch::nn::BatchNorm2d layer(3);
  const Tensor input = torch::randn({4, 3, 8, 8}).add_(2);
  layer->forward(input);
  layer->eval();
  const Tensor mean = layer->running_mean.view({1, 3, 1, 1}), var = layer->running_var.view({1, 3, 1, 1});
  EXPECT_TRUE(torch::allclose(layer->forward(input), (input - mean) / (var + 1e-5).sqrt(), 1e-4, 1e-5));
}

TEST(ChannelMoments, AreTheSameBitsOnEveryProcessorAndRight) {
  torch::manual_seed(8);
  for (const std::int64_t length : {1, 15, 16, 17, 31, 32, 49, 256, 1000}) {
    for (const std::int64_t samples : {1, 3}) {
      const Tensor values = torch::randn({samples, 2, length}).mul_(2).add_(100);
      const Tensor channel = values.select(1, 1).to(torch::kDouble);
      const double mean = channel.mean().item<double>();
      const double squares = (channel - mean).square().sum().item<double>();
      const nn_detail::ChannelPlanes planes{values.const_data_ptr<float>() + length, samples, 2 * length, length};
      const nn_detail::Moments first = nn_detail::moments_portable(planes);
      EXPECT_NEAR(first.mean, mean, 1e-10 * std::abs(mean));
      EXPECT_NEAR(first.squares, squares, 1e-10 * (1 + squares));
      for (const InstructionSet set : supported_instruction_sets()) {
        const nn_detail::Moments other = nn_detail::moments_kernel(set)(planes);
        EXPECT_EQ(other.mean, first.mean) << to_string(set) << ", " << length;
        EXPECT_EQ(other.squares, first.squares) << to_string(set) << ", " << length;
      }
    }
  }
}

// A large mean and a small variance: the squares of the values would cancel.
TEST(ChannelMoments, KeepASmallVarianceBesideALargeMean) {
  const Tensor values = torch::arange(0, 4096, torch::kFloat).remainder(2).view({1, 1, 4096}).add(1e6);
  const nn_detail::ChannelMoments found = nn_detail::channel_moments(values);
  EXPECT_FLOAT_EQ(found.mean.item<float>(), 1e6F + 0.5F);
  EXPECT_FLOAT_EQ(found.var.item<float>(), 0.25F);
}

}  // namespace
}  // namespace lockstep::test
