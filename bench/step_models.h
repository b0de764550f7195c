// Models of the step bench that the library does not have. They are the same as in peers/ddp_step.py.
#pragma once

#include <torch/torch.h>

namespace lockstep::bench {

// {N, 1, 28, 28} to logits {N, 10}.
class CnnImpl : public torch::nn::Cloneable<CnnImpl> {
 public:
  CnnImpl() { reset(); }
  void reset() override {
    conv1_ = register_module("conv1", torch::nn::Conv2d(1, 10, 5));
    conv2_ = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
    drop_ = register_module("drop", torch::nn::Dropout2d());
    fc1_ = register_module("fc1", torch::nn::Linear(320, 50));
    fc2_ = register_module("fc2", torch::nn::Linear(50, 10));
  }

  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = torch::relu(torch::max_pool2d(conv1_->forward(images), 2));
    x = torch::relu(torch::max_pool2d(drop_->forward(conv2_->forward(x)), 2));
    return fc2_->forward(torch::relu(fc1_->forward(x.flatten(1))));
  }

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::Dropout2d drop_{nullptr};
  torch::nn::Linear fc1_{nullptr};
  torch::nn::Linear fc2_{nullptr};
};
TORCH_MODULE(Cnn);

// {N, 1, 28, 28} to logits {N, 10}; 5.8 million parameters.
class MlpImpl : public torch::nn::Cloneable<MlpImpl> {
 public:
  MlpImpl() { reset(); }
  void reset() override {
    fc1_ = register_module("fc1", torch::nn::Linear(784, kHidden));
    fc2_ = register_module("fc2", torch::nn::Linear(kHidden, kHidden));
    fc3_ = register_module("fc3", torch::nn::Linear(kHidden, 10));
  }

  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor x = torch::relu(fc1_->forward(images.flatten(1)));
    return fc3_->forward(torch::relu(fc2_->forward(x)));
  }

 private:
  static constexpr std::int64_t kHidden = 2048;
  torch::nn::Linear fc1_{nullptr};
  torch::nn::Linear fc2_{nullptr};
  torch::nn::Linear fc3_{nullptr};
};
TORCH_MODULE(Mlp);

}  // namespace lockstep::bench
