// ResNet-18 and ResNet-34 (He et al., 2015) with torchvision's names of parameters and buffers, so that state dicts can
// be exchanged: conv1, bn1, layer1.0.conv1, ..., layer4.1.bn2, fc.
//
//   auto model = lockstep::models::resnet18({.num_classes = 10});
//   auto logits = model->forward(torch::randn({8, 3, 224, 224}));  // {8, 10}
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>

namespace lockstep::models {

struct ResNetOptions {
  // Residual blocks of each of the four stages; {2, 2, 2, 2} is ResNet-18, {3, 4, 6, 3} is ResNet-34.
  std::array<int, 4> blocks = {2, 2, 2, 2};
  std::int64_t num_classes = 1000;
  std::int64_t in_channels = 3;
};

// Two 3x3 convolutions around an identity, or around a 1x1 convolution where the shape changes.
class BasicBlockImpl : public torch::nn::Cloneable<BasicBlockImpl> {
 public:
  BasicBlockImpl(std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride)
      : in_channels_(in_channels), out_channels_(out_channels), stride_(stride) {
    reset();
  }
  void reset() override;

  // From {N, in_channels, H, W} to {N, out_channels, ceil(H / stride), ceil(W / stride)}.
  torch::Tensor forward(const torch::Tensor& input);

 private:
  std::int64_t in_channels_, out_channels_, stride_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::BatchNorm2d bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // empty if input and output have the same shape
};
TORCH_MODULE(BasicBlock);

class ResNetImpl : public torch::nn::Cloneable<ResNetImpl> {
 public:
  // Draws weights from LibTorch's generator (torch::manual_seed), as torchvision does: convolutions by Kaiming's normal
  // rule for fan-out, batch norm 1 and 0, the last layer like any torch::nn::Linear.
  explicit ResNetImpl(const ResNetOptions& options = {}) : options_(options) { reset(); }
  void reset() override;

  // From float images {N, in_channels, H, W} to logits {N, num_classes}. H and W should be at least 32.
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Sequential make_stage(std::int64_t in_channels, std::int64_t out_channels, int blocks,
                                   std::int64_t stride);

  ResNetOptions options_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::array<torch::nn::Sequential, 4> stages_{nullptr, nullptr, nullptr, nullptr};
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(ResNet);

// These set `options.blocks` themselves.
ResNet resnet18(ResNetOptions options = {});
ResNet resnet34(ResNetOptions options = {});

}  // namespace lockstep::models
