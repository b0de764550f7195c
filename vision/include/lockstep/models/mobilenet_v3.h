// MobileNetV3-Small (Howard et al., 2019) with torchvision's names of parameters and buffers: features.0.0.weight, ...,
// features.12.1.bias, classifier.0.weight, ..., classifier.3.bias.
//
//   auto model = lockstep::models::mobilenet_v3_small({.num_classes = 10});
//   auto logits = model->forward(torch::randn({8, 3, 224, 224}));  // {8, 10}
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace lockstep::models {

struct MobileNetV3Options {
  std::int64_t num_classes = 1000;
  std::int64_t in_channels = 3;
  // Dropout: the share of the activations before the last layer that is set to zero in training; in [0, 1).
  double dropout = 0.2;
  // For pictures of about 32x32: the first convolution has no stride. The weights have the same shapes either way.
  bool small_images = false;
};

class MobileNetV3SmallImpl : public torch::nn::Cloneable<MobileNetV3SmallImpl> {
 public:
  // Draws weights from LibTorch's generator (torch::manual_seed), as torchvision does: convolutions by Kaiming's normal
  // rule for fan-out, linear layers with standard deviation 0.01, biases 0. The same seed gives torchvision's weights.
  explicit MobileNetV3SmallImpl(const MobileNetV3Options& options = {}) : options_(options) { reset(); }
  void reset() override;

  // From float images {N, in_channels, H, W} to logits {N, num_classes}. H and W of any size; the last convolution
  // works on ceil(H / 32) x ceil(W / 32) pixels (with small_images on ceil(H / 16) x ceil(W / 16)).
  torch::Tensor forward(const torch::Tensor& images);

 private:
  MobileNetV3Options options_;
  torch::nn::Sequential features_{nullptr};
  torch::nn::Sequential classifier_{nullptr};
};
TORCH_MODULE(MobileNetV3Small);

MobileNetV3Small mobilenet_v3_small(const MobileNetV3Options& options = {});

}  // namespace lockstep::models
