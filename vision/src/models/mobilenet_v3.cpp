#include "lockstep/models/mobilenet_v3.h"

#include <algorithm>
#include <array>

namespace lockstep::models {
namespace {

namespace nn = torch::nn;

enum class Activation { kNone, kRelu, kHardswish };

torch::Tensor activate(const torch::Tensor& input, Activation activation) {
  switch (activation) {
    case Activation::kRelu: return torch::relu(input);
    case Activation::kHardswish: return torch::hardswish(input);
    default: return input;
  }
}

// A row of the paper's table 2: what one block does.
struct BlockOptions {
  std::int64_t kernel, expanded_channels, out_channels;
  bool squeeze;
  Activation activation;
  std::int64_t stride;
};

constexpr std::int64_t kFirstChannels = 16;
constexpr std::int64_t kLastChannels = 1024;
constexpr std::array<BlockOptions, 11> kBlocks = {{
    {3, 16, 16, true, Activation::kRelu, 2},
    {3, 72, 24, false, Activation::kRelu, 2},
    {3, 88, 24, false, Activation::kRelu, 1},
    {5, 96, 40, true, Activation::kHardswish, 2},
    {5, 240, 40, true, Activation::kHardswish, 1},
    {5, 240, 40, true, Activation::kHardswish, 1},
    {5, 120, 48, true, Activation::kHardswish, 1},
    {5, 144, 48, true, Activation::kHardswish, 1},
    {5, 288, 96, true, Activation::kHardswish, 2},
    {5, 576, 96, true, Activation::kHardswish, 1},
    {5, 576, 96, true, Activation::kHardswish, 1},
}};

// The multiple of 8 nearest to `channels`, but at least nine tenths of it.
std::int64_t divisible_by_8(std::int64_t channels) {
  const std::int64_t rounded = std::max<std::int64_t>(8, (channels + 4) / 8 * 8);
  return rounded * 10 < channels * 9 ? rounded + 8 : rounded;
}

// A convolution ("0"), batch normalisation ("1") and an activation.
class ConvNormImpl : public nn::Cloneable<ConvNormImpl> {
 public:
  ConvNormImpl(const nn::Conv2dOptions& options, Activation activation) : options_(options), activation_(activation) {
    reset();
  }
  void reset() override {
    conv_ = register_module("0", nn::Conv2d(options_));
    norm_ =
        register_module("1", nn::BatchNorm2d(nn::BatchNorm2dOptions(options_.out_channels()).eps(1e-3).momentum(0.01)));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    return activate(norm_->forward(conv_->forward(input)), activation_);
  }

 private:
  nn::Conv2dOptions options_;
  Activation activation_;
  nn::Conv2d conv_{nullptr};
  nn::BatchNorm2d norm_{nullptr};
};
TORCH_MODULE(ConvNorm);

ConvNorm conv_norm(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride, Activation activation,
                   std::int64_t groups = 1) {
  return ConvNorm(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding((kernel - 1) / 2).groups(groups).bias(false),
      activation);
}

// Scales each channel by a factor that two 1x1 convolutions make of the means of all channels.
class SqueezeExcitationImpl : public nn::Cloneable<SqueezeExcitationImpl> {
 public:
  explicit SqueezeExcitationImpl(std::int64_t channels) : channels_(channels) { reset(); }
  void reset() override {
    const std::int64_t squeezed = divisible_by_8(channels_ / 4);
    fc1_ = register_module("fc1", nn::Conv2d(nn::Conv2dOptions(channels_, squeezed, 1)));
    fc2_ = register_module("fc2", nn::Conv2d(nn::Conv2dOptions(squeezed, channels_, 1)));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor means = torch::adaptive_avg_pool2d(input, {1, 1});
    return torch::hardsigmoid(fc2_->forward(torch::relu(fc1_->forward(means)))) * input;
  }

 private:
  std::int64_t channels_;
  nn::Conv2d fc1_{nullptr};
  nn::Conv2d fc2_{nullptr};
};
TORCH_MODULE(SqueezeExcitation);

class InvertedResidualImpl : public nn::Cloneable<InvertedResidualImpl> {
 public:
  InvertedResidualImpl(std::int64_t in_channels, const BlockOptions& options)
      : in_channels_(in_channels), options_(options) {
    reset();
  }
  void reset() override {
    const std::int64_t expanded = options_.expanded_channels;
    nn::Sequential block;
    if (expanded != in_channels_) block->push_back(conv_norm(in_channels_, expanded, 1, 1, options_.activation));
    block->push_back(
        conv_norm(expanded, expanded, options_.kernel, options_.stride, options_.activation, /*groups=*/expanded));
    if (options_.squeeze) block->push_back(SqueezeExcitation(expanded));
    block->push_back(conv_norm(expanded, options_.out_channels, 1, 1, Activation::kNone));
    block_ = register_module("block", block);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor output = block_->forward(input);
    if (options_.stride == 1 && in_channels_ == options_.out_channels) output += input;
    return output;
  }

 private:
  std::int64_t in_channels_;
  BlockOptions options_;
  nn::Sequential block_{nullptr};
};
TORCH_MODULE(InvertedResidual);

void initialize(nn::Module& module) {
  if (auto* conv = module.as<nn::Conv2d>()) {
    nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut);
    if (conv->bias.defined()) nn::init::zeros_(conv->bias);
  } else if (auto* linear = module.as<nn::Linear>()) {
    nn::init::normal_(linear->weight, 0.0, 0.01);
    nn::init::zeros_(linear->bias);
  }
}

}  // namespace

void MobileNetV3SmallImpl::reset() {
  TORCH_CHECK_VALUE(options_.num_classes >= 1 && options_.in_channels >= 1,
                    "MobileNetV3Options: num_classes and in_channels must be at least 1, found ", options_.num_classes,
                    " and ", options_.in_channels);
  TORCH_CHECK_VALUE(options_.dropout >= 0 && options_.dropout < 1,
                    "MobileNetV3Options: dropout must be in [0, 1), found ", options_.dropout);
  nn::Sequential features;
  std::int64_t channels = kFirstChannels;
  features->push_back(
      conv_norm(options_.in_channels, channels, 3, options_.small_images ? 1 : 2, Activation::kHardswish));
  for (const BlockOptions& block : kBlocks) {
    features->push_back(InvertedResidual(channels, block));
    channels = block.out_channels;
  }
  features->push_back(conv_norm(channels, 6 * channels, 1, 1, Activation::kHardswish));
  features_ = register_module("features", features);
  classifier_ = register_module(
      "classifier", nn::Sequential(nn::Linear(6 * channels, kLastChannels),
                                   nn::Functional([](const torch::Tensor& x) { return torch::hardswish(x); }),
                                   nn::Dropout(options_.dropout), nn::Linear(kLastChannels, options_.num_classes)));
  for (const auto& module : modules(/*include_self=*/false)) initialize(*module);
}

torch::Tensor MobileNetV3SmallImpl::forward(const torch::Tensor& images) {
  return classifier_->forward(torch::adaptive_avg_pool2d(features_->forward(images), {1, 1}).flatten(1));
}

MobileNetV3Small mobilenet_v3_small(const MobileNetV3Options& options) {
  return MobileNetV3Small(options);
}

}  // namespace lockstep::models
