// A network that is trained on a device and on the CPU, and the comparison of the two.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/device.h"

namespace lockstep::test {

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    hidden = register_module("hidden", torch::nn::Linear(48, 40));  // a large gradient, and small ones
    rarely = register_module("rarely", torch::nn::Linear(40, 40));
    out = register_module("out", torch::nn::Linear(40, 5));
    to(test_device_float());
  }
  torch::Tensor forward(const torch::Tensor& x, bool all = true) {
    const torch::Tensor maps = torch::max_pool2d(torch::relu(norm(conv(x))), 2);
    torch::Tensor features = torch::relu(hidden(maps.flatten(1)));
    if (all) features = features + rarely(features);
    return torch::log_softmax(out(is_training() ? drop(features) : features), 1);
  }
  // A quarter of the features, drawn from the CPU's generator, because a device has another.
  static torch::Tensor drop(const torch::Tensor& features) {
    return features * (torch::rand(features.sizes()) < 0.75).to(features.device(), features.scalar_type()) / 0.75;
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear hidden{nullptr};
  torch::nn::Linear rarely{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(ConvNet);

using State = std::vector<torch::Tensor>;

// Parameters and buffers, on the CPU.
inline State state_of(const ConvNet& net) {
  State state;
  for (const torch::Tensor& tensor : net->parameters()) state.push_back(tensor.detach().cpu().clone());
  for (const torch::Tensor& tensor : net->buffers()) state.push_back(tensor.cpu().clone());
  return state;
}

inline void expect_same(const State& actual, const State& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_result(actual[i], expected[i])) << what << ' ' << i;
}

// Where the device computes the same sums in another order.
inline void expect_near(const State& actual, const State& expected, double relative, double absolute,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(torch::allclose(actual[i].to(torch::kDouble), expected[i].to(torch::kDouble), relative, absolute))
        << what << ' ' << i << ": " << (actual[i] - expected[i]).abs().max();
}

// One batch: its images and labels, drawn from the CPU's generator.
inline torch::Tensor loss_on(ConvNet& net, torch::Device device, bool all = true) {
  const torch::Tensor x = torch::randn({6, 1, 8, 8}, test_device_float()).to(device);
  const torch::Tensor y = torch::randint(0, 5, {6}, torch::kLong).to(device);
  return torch::nll_loss(net->forward(x, all), y);
}

}  // namespace lockstep::test
