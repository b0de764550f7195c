#include "lockstep/nn/memory_format.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep::test {
namespace {

using torch::MemoryFormat;

TEST(MemoryFormat, LaysOutAModuleAndKeepsItsTensors) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::Conv3d(2, 2, 3));
  net->register_buffer("pictures", torch::randn({2, 3, 4, 5}));
  const std::vector<torch::Tensor> before = net->parameters();
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& parameter : before) values.push_back(parameter.detach().clone());
  const auto kernel = [&](std::size_t layer) { return net[layer]->named_parameters()["weight"]; };
  const auto expect_values = [&] {
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(net->parameters()[i].is_same(before[i]));
      EXPECT_TRUE(torch::equal(before[i], values[i]));
    }
  };
  kernel(0).mutable_grad() = torch::randn_like(kernel(0));
  to_memory_format(*net, MemoryFormat::ChannelsLast);
  EXPECT_TRUE(kernel(0).grad().is_contiguous(MemoryFormat::ChannelsLast));
  EXPECT_TRUE(kernel(0).is_contiguous(MemoryFormat::ChannelsLast));
  EXPECT_TRUE(net->named_buffers(/*recurse=*/false)["pictures"].is_contiguous(MemoryFormat::ChannelsLast));
  EXPECT_TRUE(kernel(2).is_contiguous());
  expect_values();
  to_memory_format(*net, MemoryFormat::ChannelsLast3d);
  EXPECT_TRUE(kernel(2).is_contiguous(MemoryFormat::ChannelsLast3d));
  to_memory_format(*net, MemoryFormat::Contiguous);
  EXPECT_TRUE(kernel(0).is_contiguous());
  EXPECT_TRUE(kernel(2).is_contiguous());
  expect_values();
}

// Pictures of one channel are in both orders, but a convolution takes the layout from their strides.
TEST(MemoryFormat, IsSeenInPicturesOfOneChannel) {
  const torch::Tensor grey = to_memory_format(torch::randn({2, 1, 8, 8}), MemoryFormat::ChannelsLast);
  EXPECT_EQ(grey.suggest_memory_format(), MemoryFormat::ChannelsLast);
  EXPECT_TRUE(to_memory_format(grey, MemoryFormat::ChannelsLast).is_same(grey));
}

}  // namespace
}  // namespace lockstep::test
