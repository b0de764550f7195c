#include "lockstep/models/mnist_net.h"

namespace lockstep::models {

// In the order of the Python original, so that each weight gets the same random numbers.
void MnistNetImpl::reset() {
  conv1_ = register_module("conv1", torch::nn::Conv2d(1, 10, 5));
  conv2_ = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
  conv2_drop_ = register_module("conv2_drop", torch::nn::Dropout2d());
  fc1_ = register_module("fc1", torch::nn::Linear(320, 50));
  fc2_ = register_module("fc2", torch::nn::Linear(50, 10));
}

torch::Tensor MnistNetImpl::forward(const torch::Tensor& images) {
  torch::Tensor x = torch::relu(torch::max_pool2d(conv1_->forward(images), 2));
  x = torch::relu(torch::max_pool2d(conv2_drop_->forward(conv2_->forward(x)), 2));
  x = torch::relu(fc1_->forward(x.view({-1, 320})));
  x = torch::dropout(x, 0.5, is_training());
  return torch::log_softmax(fc2_->forward(x), 1);
}

}  // namespace lockstep::models
