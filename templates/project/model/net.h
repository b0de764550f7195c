// The model: pictures {N, 3, H, W} to scores {N, classes}.
#pragma once

#include <torch/torch.h>

class NetImpl : public torch::nn::Module {
 public:
  explicit NetImpl(std::int64_t classes) {
    // The largest value of each channel, wherever it is: a shape is the same shape in every place.
    body_ = register_module("body", torch::nn::Sequential());
    for (std::int64_t from = 3, to = 16; to <= kChannels; from = to, to *= 2) {
      if (from > 3) body_->push_back(torch::nn::MaxPool2d(2));
      body_->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1).bias(false)));
      body_->push_back(torch::nn::BatchNorm2d(to));
      body_->push_back(torch::nn::ReLU());
    }
    body_->push_back(torch::nn::AdaptiveMaxPool2d(1));
    body_->push_back(torch::nn::Flatten());
    head_ = register_module("head", torch::nn::Linear(kChannels, classes));
  }

  torch::Tensor forward(const torch::Tensor& pictures) { return head_->forward(body_->forward(pictures)); }

 private:
  static constexpr std::int64_t kChannels = 64;
  torch::nn::Sequential body_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Net);
