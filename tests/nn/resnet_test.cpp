#include "lockstep/nn/models/resnet.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::models {
namespace {

std::int64_t count_parameters(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

// The counts in torchvision's documentation of its models.
TEST(ResNet, HasTorchvisionsNumberOfParameters) {
  EXPECT_EQ(count_parameters(*resnet18()), 11689512);
  EXPECT_EQ(count_parameters(*resnet34()), 21797672);
}

TEST(ResNet, NamesFollowTorchvision) {
  const ResNet model = resnet18({.num_classes = 10});
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["conv1.weight"].sizes(), (std::vector<std::int64_t>{64, 3, 7, 7}));
  EXPECT_EQ(parameters["layer1.0.conv1.weight"].sizes(), (std::vector<std::int64_t>{64, 64, 3, 3}));
  EXPECT_EQ(parameters["layer2.0.downsample.0.weight"].sizes(), (std::vector<std::int64_t>{128, 64, 1, 1}));
  EXPECT_EQ(parameters["layer2.0.downsample.1.bias"].sizes(), (std::vector<std::int64_t>{128}));
  EXPECT_EQ(parameters["layer4.1.bn2.weight"].sizes(), (std::vector<std::int64_t>{512}));
  EXPECT_EQ(parameters["fc.weight"].sizes(), (std::vector<std::int64_t>{10, 512}));
  EXPECT_FALSE(parameters.contains("layer1.0.downsample.0.weight"));
  EXPECT_TRUE(model->named_buffers().contains("layer3.1.bn1.running_var"));
}

TEST(ResNet, ForwardAnswersLogitsAndAllParametersGetGradients) {
  torch::manual_seed(1);
  ResNet model = resnet18({.num_classes = 7, .in_channels = 1});
  const torch::Tensor logits = model->forward(torch::randn({2, 1, 32, 32}));
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 7}));
  logits.sum().backward();
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
}

// Kaiming's normal rule for fan-out: variance 2 / (out_channels * kernel area).
TEST(ResNet, ConvolutionsStartWithKaimingsVariance) {
  torch::manual_seed(1);
  const torch::Tensor weight = resnet18()->named_parameters()["layer4.1.conv2.weight"];
  EXPECT_NEAR(weight.std().item<double>(), std::sqrt(2.0 / (512 * 9)), 2e-4);
  EXPECT_NEAR(weight.mean().item<double>(), 0.0, 1e-4);
}

TEST(ResNet, StageWithoutBlocksIsRefused) {
  EXPECT_THROW(ResNet(ResNetOptions{.blocks = {2, 0, 2, 2}}), c10::Error);
}

}  // namespace
}  // namespace lockstep::models
