#include "lockstep/models/resnet.h"

#include <string>

namespace lockstep::models {
namespace {

constexpr std::array<std::int64_t, 4> kWidths = {64, 128, 256, 512};
constexpr std::int64_t kExpansion = 4;  // how much wider the output of a Bottleneck is than its 3x3 convolution

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// What is added to a block's result where the shape changes.
torch::nn::Sequential projection(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return torch::nn::Sequential(convolution(in, out, 1, stride), torch::nn::BatchNorm2d(out));
}

ResNet make(ResNetOptions options, std::array<int, 4> blocks, bool bottleneck) {
  options.blocks = blocks;
  options.bottleneck = bottleneck;
  return ResNet(options);
}

}  // namespace

void BasicBlockImpl::reset() {
  conv1_ = register_module("conv1", convolution(in_channels_, out_channels_, 3, stride_));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(out_channels_));
  conv2_ = register_module("conv2", convolution(out_channels_, out_channels_, 3, 1));
  bn2_ = register_module("bn2", torch::nn::BatchNorm2d(out_channels_));
  if (stride_ != 1 || in_channels_ != out_channels_)
    downsample_ = register_module("downsample", projection(in_channels_, out_channels_, stride_));
}

torch::Tensor BasicBlockImpl::forward(const torch::Tensor& input) {
  torch::Tensor output = bn1_->forward(conv1_->forward(input)).relu_();
  output = bn2_->forward(conv2_->forward(output));
  output += downsample_.is_empty() ? input : downsample_->forward(input);
  return output.relu_();
}

void BottleneckImpl::reset() {
  const std::int64_t width = out_channels_ / kExpansion;
  conv1_ = register_module("conv1", convolution(in_channels_, width, 1, 1));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(width));
  conv2_ = register_module("conv2", convolution(width, width, 3, stride_));
  bn2_ = register_module("bn2", torch::nn::BatchNorm2d(width));
  conv3_ = register_module("conv3", convolution(width, out_channels_, 1, 1));
  bn3_ = register_module("bn3", torch::nn::BatchNorm2d(out_channels_));
  if (stride_ != 1 || in_channels_ != out_channels_)
    downsample_ = register_module("downsample", projection(in_channels_, out_channels_, stride_));
}

torch::Tensor BottleneckImpl::forward(const torch::Tensor& input) {
  torch::Tensor output = bn1_->forward(conv1_->forward(input)).relu_();
  output = bn2_->forward(conv2_->forward(output)).relu_();
  output = bn3_->forward(conv3_->forward(output));
  output += downsample_.is_empty() ? input : downsample_->forward(input);
  return output.relu_();
}

void ResNetImpl::reset() {
  TORCH_CHECK_VALUE(options_.num_classes >= 1 && options_.in_channels >= 1,
                    "ResNetOptions: num_classes and in_channels must be at least 1, found ", options_.num_classes,
                    " and ", options_.in_channels);
  const bool small = options_.small_images;
  conv1_ = register_module("conv1", convolution(options_.in_channels, kWidths[0], small ? 3 : 7, small ? 1 : 2));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(kWidths[0]));
  std::int64_t in_channels = kWidths[0];
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const std::int64_t out_channels = kWidths[stage] * (options_.bottleneck ? kExpansion : 1);
    const std::int64_t stride = stage == 0 ? 1 : 2;
    stages_[stage] = register_module("layer" + std::to_string(stage + 1),
                                     make_stage(in_channels, out_channels, options_.blocks[stage], stride));
    in_channels = out_channels;
  }
  fc_ = register_module("fc", torch::nn::Linear(in_channels, options_.num_classes));
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* layer = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(layer->weight, 0.0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::nn::Sequential ResNetImpl::make_stage(std::int64_t in_channels, std::int64_t out_channels, int blocks,
                                             std::int64_t stride) {
  TORCH_CHECK(blocks >= 1, "ResNetOptions::blocks: every stage needs at least one block, found ", blocks);
  torch::nn::Sequential stage;
  for (int block = 0; block < blocks; ++block) {
    const std::int64_t in = block == 0 ? in_channels : out_channels;
    const std::int64_t block_stride = block == 0 ? stride : 1;
    if (options_.bottleneck) {
      stage->push_back(Bottleneck(in, out_channels, block_stride));
    } else {
      stage->push_back(BasicBlock(in, out_channels, block_stride));
    }
  }
  return stage;
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images) {
  torch::Tensor output = bn1_->forward(conv1_->forward(images)).relu_();
  if (!options_.small_images) output = torch::max_pool2d(output, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (torch::nn::Sequential& stage : stages_) output = stage->forward(output);
  output = torch::adaptive_avg_pool2d(output, {1, 1}).flatten(1);
  return fc_->forward(output);
}

ResNet resnet18(ResNetOptions options) {
  return make(options, {2, 2, 2, 2}, false);
}

ResNet resnet34(ResNetOptions options) {
  return make(options, {3, 4, 6, 3}, false);
}

ResNet resnet50(ResNetOptions options) {
  return make(options, {3, 4, 6, 3}, true);
}

ResNet resnet101(ResNetOptions options) {
  return make(options, {3, 4, 23, 3}, true);
}

}  // namespace lockstep::models
