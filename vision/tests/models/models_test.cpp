// What tests/parity/models_parity_test.cpp does not compare with torchvision: options, and wrong ones.
#include <gtest/gtest.h>

#include <array>

#include "lockstep/models/mobilenet_v3.h"
#include "lockstep/models/resnet.h"
#include "lockstep/models/vision_transformer.h"
#include "nn/error_texts.h"

namespace lockstep::models {
namespace {

using test::error_of;
using test::expect_in;
using torch::nn::AnyModule;

std::int64_t count_parameters(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

// That of ViT-tiny is DeiT's, which torchvision lacks.
TEST(Models, HaveThePublishedNumbersOfParameters) {
  EXPECT_EQ(count_parameters(*mobilenet_v3_small()), 2542856);
  EXPECT_EQ(count_parameters(*vit_tiny()), 5717416);
}

// Grey pictures of 32x32; every parameter gets a gradient; clones are independent.
TEST(Models, TakeSmallPicturesOfAnyChannels) {
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const std::array<int, 4> blocks = {1, 1, 1, 1};
  for (AnyModule model :
       {AnyModule(ResNet(ResNetOptions{.blocks = blocks, .num_classes = 7, .in_channels = 1, .small_images = true})),
        AnyModule(ResNet(ResNetOptions{
            .blocks = blocks, .bottleneck = true, .num_classes = 7, .in_channels = 1, .small_images = true})),
        AnyModule(mobilenet_v3_small({.num_classes = 7, .in_channels = 1, .small_images = true})),
        AnyModule(VisionTransformer(VisionTransformerOptions{.image_size = 32,
        .patch_size = 8,
        .dropout = 0.1,
        .attention_dropout = 0.1,
        .num_classes = 7,
        .in_channels = 1}))}) {
    const torch::Tensor logits = model.forward(torch::randn({2, 1, 32, 32}));
    ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 7}));
    (logits * torch::arange(7)).sum().backward();
    for (const auto& parameter : model.ptr()->named_parameters())
      EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
    const auto clone = model.ptr()->clone();
    EXPECT_EQ(clone->named_parameters().keys(), model.ptr()->named_parameters().keys());
    EXPECT_EQ(count_parameters(*clone), count_parameters(*model.ptr()));
    EXPECT_NE(clone->parameters()[0].data_ptr(), model.ptr()->parameters()[0].data_ptr());
  }
}

// 32x32 pixels leave 4x4 for the last stage, not one.
TEST(Models, SmallPicturesKeepTheirPixels) {
  const ResNet model = resnet18({.num_classes = 10, .small_images = true});
  EXPECT_EQ(model->named_parameters()["conv1.weight"].sizes(), (std::vector<std::int64_t>{64, 3, 3, 3}));
  EXPECT_EQ(model->named_parameters().size(), resnet18({.num_classes = 10})->named_parameters().size());
}

TEST(Models, WrongOptionsAreNamed) {
  EXPECT_THROW(ResNet(ResNetOptions{.blocks = {2, 0, 2, 2}}), c10::Error);
  expect_in(error_of([] { resnet50({.num_classes = 0}); }), {"ResNetOptions", "num_classes", "0"});
  expect_in(error_of([] { mobilenet_v3_small({.dropout = 1.0}); }), {"MobileNetV3Options", "dropout", "1"});
  expect_in(error_of([] { mobilenet_v3_small({.in_channels = 0}); }), {"in_channels"});
  expect_in(error_of([] { vit_tiny({.image_size = 100}); }), {"image_size 100", "patch_size 16"});
  expect_in(error_of([] { vit_tiny({.num_classes = -1}); }), {"num_classes", "-1"});
  expect_in(error_of([] { vit_tiny({.dropout = 1.5}); }), {"dropout", "1.5"});
  expect_in(error_of([] { VisionTransformer(VisionTransformerOptions{.num_heads = 5}); }),
            {"hidden_dim 768", "num_heads 5"});
}

TEST(Models, VisionTransformerNamesTheSizeThatItTakes) {
  VisionTransformer model = vit_tiny({.image_size = 32, .patch_size = 8});
  expect_in(error_of([&] { model->forward(torch::zeros({1, 3, 64, 64})); }), {"{N, 3, 32, 32}", "[1, 3, 64, 64]"});
  expect_in(error_of([&] { model->forward(torch::zeros({3, 32, 32})); }), {"[3, 32, 32]"});
}

// A truncated normal distribution with variance 1 / fan-in.
TEST(Models, PatchesOfVisionTransformersStartWithTheirVariance) {
  torch::manual_seed(1);
  const torch::Tensor weight = vit_tiny({.patch_size = 2, .in_channels = 1})->named_parameters()["conv_proj.weight"];
  EXPECT_NEAR(weight.std().item<double>(), 0.5, 0.05);
  EXPECT_LE(weight.abs().max().item<double>(), 2.0);
  // With variance 1 one number in 22 would be beyond 2.
  const torch::Tensor wide =
      vit_tiny({.image_size = 4, .patch_size = 1, .in_channels = 1})->named_parameters()["conv_proj.weight"];
  EXPECT_LE(wide.abs().max().item<double>(), 2.0);
  EXPECT_NEAR(wide.std().item<double>(), 0.88, 0.15);
}

}  // namespace
}  // namespace lockstep::models
