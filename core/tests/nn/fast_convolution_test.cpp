// use_fast_convolution(). The judge is LibTorch's own function: at::convolution() lies behind the intercepted operator.
#include "lockstep/nn/fast_convolution.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "nn/convolution/fast_convolution.h"

namespace lockstep::test {
namespace {

using torch::MemoryFormat;
using torch::Tensor;

struct ConvShape {
  std::int64_t samples, in, out, height, width;
  nn_detail::Pair kernel = {3, 3}, stride = {1, 1}, padding = {1, 1};
};

// A convolution and what it is called with.
struct Conv {
  Tensor input, weight, bias;
  nn_detail::Pair stride = {1, 1}, padding = {1, 1}, dilation = {1, 1};
  std::int64_t groups = 1;

  Conv copy() const {
    const auto own = [](const Tensor& tensor) {
      return tensor.defined() ? tensor.detach().clone().requires_grad_(tensor.requires_grad()) : tensor;
    };
    return {own(input), own(weight), own(bias), stride, padding, dilation, groups};
  }
  Tensor by_operator() const { return at::conv2d(input, weight, bias, stride, padding, dilation, groups); }
  Tensor by_libtorch() const {
    return at::convolution(input, weight, bias, stride, padding, dilation, false, {0, 0}, groups);
  }
  bool is_fast() const {
    return nn_detail::suits_fast_convolution({input, weight, bias, stride, padding, dilation, groups});
  }
};

Conv conv_of(const ConvShape& shape, MemoryFormat pictures = MemoryFormat::Contiguous,
             MemoryFormat kernels = MemoryFormat::Contiguous, bool bias = false) {
  Conv conv;
  conv.input = torch::randn({shape.samples, shape.in, shape.height, shape.width}).contiguous(pictures).requires_grad_();
  conv.weight = torch::randn({shape.out, shape.in, shape.kernel[0], shape.kernel[1]})
                    .mul_(0.05)
                    .contiguous(kernels)
                    .requires_grad_();
  if (bias) conv.bias = torch::randn({shape.out}).requires_grad_();
  conv.stride = shape.stride;
  conv.padding = shape.padding;
  return conv;
}

const ConvShape kUsual{.samples = 4, .in = 128, .out = 128, .height = 2, .width = 2};

void expect_values(const Tensor& mine, const Tensor& judge, const std::string& what) {
  ASSERT_EQ(mine.defined(), judge.defined()) << what;
  if (!judge.defined()) return;
  ASSERT_EQ(mine.sizes(), judge.sizes()) << what;
  const float scale = judge.abs().max().item<float>();
  EXPECT_TRUE(torch::allclose(mine, judge, 1e-4, 2e-5 * scale))
      << what << ": apart by " << (mine - judge).abs().max().item<float>() << " of " << scale;
}

std::vector<Tensor> conv_gradients(const Conv& conv, const Tensor& output, const Tensor& upstream, bool second) {
  std::vector<Tensor> to;
  for (const Tensor& tensor : {conv.input, conv.weight, conv.bias}) {
    if (tensor.defined() && tensor.requires_grad()) to.push_back(tensor);
  }
  if (to.empty()) return {};
  std::vector<Tensor> first = torch::autograd::grad({output}, to, {upstream}, /*retain_graph=*/second, second);
  if (!second) return first;
  Tensor sum = torch::zeros({});
  for (const Tensor& gradient : first) sum = sum + gradient.square().sum();
  return torch::autograd::grad({sum}, {conv.input, conv.weight});
}

// Values, their layout, and gradients.
void expect_like_libtorch(const Conv& mine, const std::string& what, bool second = false) {
  const Conv judge = mine.copy();
  const Tensor ours = mine.by_operator(), theirs = judge.by_libtorch();
  expect_values(ours, theirs, what + ": values");
  EXPECT_EQ(ours.suggest_memory_format(), theirs.suggest_memory_format()) << what;
  const Tensor upstream = torch::randn_like(theirs);
  const std::vector<Tensor> found = conv_gradients(mine, ours, upstream, second);
  const std::vector<Tensor> wanted = conv_gradients(judge, theirs, upstream, second);
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    expect_values(found[i], wanted[i], c10::str(what, ": gradient ", i));
    if (second) continue;
    EXPECT_FALSE(found[i].is_view()) << what << ": gradient " << i;
    if (found[i].dim() < 4) continue;
    EXPECT_EQ(found[i].suggest_memory_format(), wanted[i].suggest_memory_format()) << what << ": gradient " << i;
  }
}

TEST(FastConvolution, IsLibTorchsInEveryShapeAndLayout) {
  torch::manual_seed(1);
  use_fast_convolution();
  const std::vector<ConvShape> shapes = {
      kUsual,
      {.samples = 1, .in = 256, .out = 512, .height = 1, .width = 1},
      {.samples = 16, .in = 256, .out = 128, .height = 4, .width = 4, .stride = {2, 2}},
      {.samples = 3,
       .in = 64,
       .out = 100,
       .height = 5,
       .width = 3,
       .kernel = {5, 5},
       .stride = {2, 1},
       .padding = {3, 2}},
      {.samples = 2,
       .in = 130,
       .out = 210,
       .height = 4,
       .width = 7,
       .kernel = {2, 3},
       .stride = {3, 2},
       .padding = {0, 4}},
      {.samples = 8, .in = 512, .out = 256, .height = 4, .width = 4, .kernel = {1, 1}, .padding = {0, 0}},
      {.samples = 8,
       .in = 256,
       .out = 512,
       .height = 4,
       .width = 4,
       .kernel = {1, 1},
       .stride = {2, 2},
       .padding = {0, 0}}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (const MemoryFormat pictures : {MemoryFormat::Contiguous, MemoryFormat::ChannelsLast}) {
      for (const MemoryFormat kernels : {MemoryFormat::Contiguous, MemoryFormat::ChannelsLast}) {
        for (const bool bias : {false, true}) {
          const Conv conv = conv_of(shapes[i], pictures, kernels, bias);
          const std::string what =
              c10::str("shape ", i, ", pictures ", pictures, ", kernels ", kernels, ", bias ", bias);
          const bool mixed = pictures == MemoryFormat::ChannelsLast && kernels == MemoryFormat::Contiguous;
          ASSERT_TRUE(mixed || conv.is_fast()) << what;
          expect_like_libtorch(conv, what);
        }
      }
    }
  }
}

TEST(FastConvolution, GivesOnlyTheGradientsThatAreWanted) {
  torch::manual_seed(2);
  use_fast_convolution();
  for (int wanted = 0; wanted < 8; ++wanted) {
    Conv conv = conv_of(kUsual, MemoryFormat::Contiguous, MemoryFormat::Contiguous, /*bias=*/true);
    conv.input.requires_grad_((wanted & 1) != 0);
    conv.weight.requires_grad_((wanted & 2) != 0);
    conv.bias.requires_grad_((wanted & 4) != 0);
    expect_like_libtorch(conv, c10::str("wanted ", wanted));
  }
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(conv_of(kUsual).by_operator().requires_grad());
  }
  const at::AutoDispatchBelowAutograd below;  // as in a kernel of somebody else
  EXPECT_FALSE(conv_of(kUsual).by_operator().requires_grad());
}

// Asked for one gradient, LibTorch does not compute the other.
TEST(FastConvolution, ComputesTheGradientsThatArePulled) {
  torch::manual_seed(11);
  use_fast_convolution();
  const Conv conv = conv_of(kUsual, MemoryFormat::Contiguous, MemoryFormat::Contiguous, /*bias=*/true);
  const Tensor sum = conv.by_operator().sum();
  for (const Tensor& input : {conv.input, conv.weight, conv.bias}) {
    const Tensor found = torch::autograd::grad({sum}, {input}, {}, /*retain_graph=*/true)[0];
    const Tensor wanted = torch::autograd::grad({conv.by_libtorch().sum()}, {input})[0];
    expect_values(found, wanted, "one gradient");
  }
}

TEST(FastConvolution, HasSecondDerivatives) {
  torch::manual_seed(3);
  use_fast_convolution();
  for (const MemoryFormat layout : {MemoryFormat::Contiguous, MemoryFormat::ChannelsLast}) {
    for (const bool bias : {false, true}) {
      expect_like_libtorch(conv_of(kUsual, layout, layout, bias), "second derivatives", /*second=*/true);
    }
  }
}

// Every second column of wider pictures, and a part of a larger kernel.
TEST(FastConvolution, TakesViews) {
  torch::manual_seed(4);
  use_fast_convolution();
  Conv conv = conv_of(kUsual);
  conv.input = torch::randn({4, 128, 2, 4}).slice(3, 0, 4, 2).requires_grad_();
  conv.weight = torch::randn({130, 128, 3, 3}).slice(0, 1, 129).requires_grad_();
  ASSERT_TRUE(conv.is_fast());
  expect_like_libtorch(conv, "views");
}

TEST(FastConvolution, ServesLayersAndCanBeChangedInPlace) {
  torch::manual_seed(5);
  use_fast_convolution();
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(128, 128, 3).padding(1));
  const Tensor input = torch::randn({4, 128, 2, 2});
  const Tensor output = layer->forward(input);
  EXPECT_NE(output.grad_fn()->name().find("FastConvolution"), std::string::npos) << output.grad_fn()->name();
  for (const MemoryFormat layout : {MemoryFormat::Contiguous, MemoryFormat::ChannelsLast}) {
    const Tensor result = torch::conv2d(input, layer->weight.contiguous(layout), {}, 1, 1);
    EXPECT_NE(result.grad_fn()->name().find("FastConvolution"), std::string::npos) << result.grad_fn()->name();
    result.add_(1).relu_().sum().backward();
    EXPECT_TRUE(layer->weight.grad().defined());
  }
}

TEST(FastConvolution, SharesTheWorkOfManyThreads) {
  torch::manual_seed(6);
  use_fast_convolution();
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  expect_like_libtorch(conv_of({.samples = 7, .in = 128, .out = 128, .height = 3, .width = 3}), "3 threads");
  at::set_num_threads(threads);
}

TEST(FastConvolution, LeavesToLibTorchWhatIsUnusual) {
  torch::manual_seed(7);
  use_fast_convolution();
  const Conv usual = conv_of(kUsual, MemoryFormat::Contiguous, MemoryFormat::Contiguous, /*bias=*/true);
  ASSERT_TRUE(usual.is_fast());
  const auto expect_left = [&](const char* what, const std::function<void(Conv&)>& change, bool works = true) {
    Conv conv = usual.copy();
    change(conv);
    EXPECT_FALSE(conv.is_fast()) << what;
    if (works) expect_like_libtorch(conv, what);
  };
  const auto as_doubles = [](Conv& conv) {
    for (Tensor* tensor : {&conv.input, &conv.weight, &conv.bias}) *tensor = tensor->detach().to(torch::kDouble);
  };
  expect_left("doubles", as_doubles);
  expect_left("groups", [](Conv& conv) {
    conv.groups = 2;
    conv.weight = torch::randn({256, 64, 3, 3});
    conv.bias = Tensor();
  });
  expect_left("dilation", [](Conv& conv) { conv.dilation = {2, 1}, conv.padding = {2, 1}; });
  expect_left("a small kernel", [](Conv& conv) { conv.weight = torch::randn({128, 128, 1, 1}); });
  expect_left("many taps", [](Conv& conv) {
    conv.weight = torch::randn({128, 128, 6, 5});
    conv.padding = {3, 2};
  });
  expect_left("few results", [](Conv& conv) {
    conv.weight = torch::randn({32, 512, 3, 3});
    conv.input = torch::randn({4, 512, 2, 2});
    conv.bias = Tensor();
  });
  expect_left("few channels, last", [](Conv& conv) {
    conv.weight = torch::randn({512, 32, 3, 3}).contiguous(MemoryFormat::ChannelsLast);
    conv.input = torch::randn({4, 32, 2, 2});
    conv.bias = Tensor();
  });
  expect_left(
      "a padding that overflows",
      [](Conv& conv) {
        conv.padding = {INT64_MAX, INT64_MAX};
      },
      false);
  expect_left("many pixels", [](Conv& conv) { conv.input = torch::randn({33, 128, 2, 2}); });
  expect_left(
      "no sample",
      [](Conv& conv) {
        conv.input = torch::randn({0, 128, 2, 2});
      },
      false);
  expect_left("a transposed kernel", [](Conv& conv) { conv.weight = torch::randn({128, 128, 3, 3}).transpose(2, 3); });
  expect_left(
      "other channels",
      [](Conv& conv) {
        conv.input = torch::randn({4, 127, 2, 2});
      },
      false);
  expect_left(
      "another number of biases", [](Conv& conv) { conv.bias = torch::randn({4}); }, false);
  expect_left(
      "a kernel beyond the picture",
      [](Conv& conv) {
        conv.padding = {0, 0};
      },
      false);
  expect_left(
      "a negative padding",
      [](Conv& conv) {
        conv.padding = {-1, 1};
      },
      false);
  expect_left(
      "no stride",
      [](Conv& conv) {
        conv.stride = {0, 1};
      },
      false);
}

// What LibTorch takes or refuses is taken or refused as before, also by the layer: one picture alone, or a wrong one.
TEST(FastConvolution, KeepsLibTorchsErrors) {
  torch::manual_seed(8);
  use_fast_convolution();
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(128, 128, 3).padding(1));
  EXPECT_EQ(layer->forward(torch::randn({128, 2, 2})).sizes(), (std::vector<std::int64_t>{128, 2, 2}));
  EXPECT_THROW(layer->forward(torch::randn({4, 127, 2, 2})), c10::Error);
  EXPECT_THROW(layer->forward(torch::randn({4, 128, 2})), c10::Error);
  Tensor input = torch::randn({2, 128, 2, 2}).requires_grad_();
  const Tensor changed = input * 2;
  const Tensor output = layer->forward(changed);
  changed.add_(1);
  EXPECT_THROW(output.sum().backward(), c10::Error);  // a tensor that the backward pass needs was changed
}

TEST(FastConvolution, WorksInInferenceMode) {
  torch::manual_seed(9);
  use_fast_convolution();
  const Conv usual = conv_of(kUsual);
  const c10::InferenceMode inference;
  for (const Conv& conv : {usual, conv_of(kUsual)}) expect_values(conv.by_operator(), conv.by_libtorch(), "values");
}

TEST(FastConvolution, WorksUnderAutocast) {
  torch::manual_seed(10);
  use_fast_convolution();
  const Conv conv = conv_of(kUsual);
  at::autocast::set_autocast_enabled(torch::kCPU, true);
  const Tensor output = conv.by_operator();
  at::autocast::set_autocast_enabled(torch::kCPU, false);
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  output.sum().backward();
  EXPECT_EQ(conv.weight.grad().scalar_type(), torch::kFloat);
}

}  // namespace
}  // namespace lockstep::test
