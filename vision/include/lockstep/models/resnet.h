// ResNet-18, 34, 50 and 101 (He et al., 2015) with torchvision's names of parameters and buffers, so that state dicts
// can be exchanged: conv1, bn1, layer1.0.conv1, ..., layer4.1.bn2, fc.
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
  // The kind of block: Bottleneck (ResNet-50 and 101) or BasicBlock.
  bool bottleneck = false;
  std::int64_t num_classes = 1000;
  std::int64_t in_channels = 3;
  // For pictures of about 32x32: the first convolution is 3x3 without a stride, and the pooling after it is left out,
  // as is usual for CIFAR. Otherwise such a picture is one pixel in the last stage. conv1.weight then has another shape
  // than torchvision's.
  bool small_images = false;
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

// A 1x1 convolution to out_channels / 4, a 3x3 convolution, and a 1x1 convolution to out_channels, around an identity
// or a 1x1 convolution as in BasicBlock. The 3x3 convolution has the stride, as in torchvision (ResNet v1.5).
class BottleneckImpl : public torch::nn::Cloneable<BottleneckImpl> {
 public:
  BottleneckImpl(std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride)
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
  torch::nn::Conv2d conv3_{nullptr};
  torch::nn::BatchNorm2d bn3_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // empty if input and output have the same shape
};
TORCH_MODULE(Bottleneck);

class ResNetImpl : public torch::nn::Cloneable<ResNetImpl> {
 public:
  // Draws weights from LibTorch's generator (torch::manual_seed), as torchvision does: convolutions by Kaiming's normal
  // rule for fan-out, batch norm 1 and 0, the last layer like any torch::nn::Linear. The same seed gives torchvision's
  // weights.
  explicit ResNetImpl(const ResNetOptions& options = {}) : options_(options) { reset(); }
  void reset() override;

  // From float images {N, in_channels, H, W} to logits {N, num_classes}. H and W of any size; the last stage works on
  // ceil(H / 32) x ceil(W / 32) pixels (with small_images on ceil(H / 8) x ceil(W / 8)).
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

// These set `blocks` and `bottleneck` themselves.
ResNet resnet18(ResNetOptions options = {});
ResNet resnet34(ResNetOptions options = {});
ResNet resnet50(ResNetOptions options = {});
ResNet resnet101(ResNetOptions options = {});

}  // namespace lockstep::models
