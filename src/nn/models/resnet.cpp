#include "lockstep/nn/models/resnet.h"

#include <string>

namespace lockstep::models {
namespace {

constexpr std::array<std::int64_t, 4> kWidths = {64, 128, 256, 512};

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

}  // namespace

void BasicBlockImpl::reset() {
  conv1_ = register_module("conv1", convolution(in_channels_, out_channels_, 3, stride_));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(out_channels_));
  conv2_ = register_module("conv2", convolution(out_channels_, out_channels_, 3, 1));
  bn2_ = register_module("bn2", torch::nn::BatchNorm2d(out_channels_));
  if (stride_ != 1 || in_channels_ != out_channels_) {
    torch::nn::Conv2d shortcut = convolution(in_channels_, out_channels_, 1, stride_);
    downsample_ = register_module("downsample", torch::nn::Sequential(shortcut, torch::nn::BatchNorm2d(out_channels_)));
  }
}

torch::Tensor BasicBlockImpl::forward(const torch::Tensor& input) {
  torch::Tensor output = bn1_->forward(conv1_->forward(input)).relu_();
  output = bn2_->forward(conv2_->forward(output));
  output += downsample_.is_empty() ? input : downsample_->forward(input);
  return output.relu_();
}

void ResNetImpl::reset() {
  conv1_ = register_module("conv1", convolution(options_.in_channels, kWidths[0], 7, 2));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(kWidths[0]));
  std::int64_t in_channels = kWidths[0];
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const std::int64_t stride = stage == 0 ? 1 : 2;
    stages_[stage] = register_module("layer" + std::to_string(stage + 1),
                                     make_stage(in_channels, kWidths[stage], options_.blocks[stage], stride));
    in_channels = kWidths[stage];
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
  torch::nn::Sequential stage(BasicBlock(in_channels, out_channels, stride));
  for (int block = 1; block < blocks; ++block) stage->push_back(BasicBlock(out_channels, out_channels, 1));
  return stage;
}

torch::Tensor ResNetImpl::forward(const torch::Tensor& images) {
  torch::Tensor output = bn1_->forward(conv1_->forward(images)).relu_();
  output = torch::max_pool2d(output, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (torch::nn::Sequential& stage : stages_) output = stage->forward(output);
  output = torch::adaptive_avg_pool2d(output, {1, 1}).flatten(1);
  return fc_->forward(output);
}

ResNet resnet18(ResNetOptions options) {
  options.blocks = {2, 2, 2, 2};
  return ResNet(options);
}

ResNet resnet34(ResNetOptions options) {
  options.blocks = {3, 4, 6, 3};
  return ResNet(options);
}

}  // namespace lockstep::models
