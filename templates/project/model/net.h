// The model: pictures {N, 3, H, W} to scores {N, classes}.
#pragma once

#include <torch/torch.h>

class NetImpl : public torch::nn::Module {
 public:
  explicit NetImpl(std::int64_t classes) {
    body_ = register_module(
        "body", torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).padding(1).bias(false)),
                                      torch::nn::BatchNorm2d(16), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                                      torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1).bias(false)),
                                      torch::nn::BatchNorm2d(32), torch::nn::ReLU(), torch::nn::AdaptiveAvgPool2d(4),
                                      torch::nn::Flatten()));
    head_ = register_module("head", torch::nn::Linear(32 * 4 * 4, classes));
  }

  torch::Tensor forward(const torch::Tensor& pictures) { return head_->forward(body_->forward(pictures)); }

 private:
  torch::nn::Sequential body_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Net);
