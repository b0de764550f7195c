// The small convolutional network of PyTorch's MNIST and distributed examples, with their parameter names (conv1,
// conv2, fc1, fc2) and, for the same torch::manual_seed, the same initial weights.
#pragma once

#include <torch/torch.h>

namespace lockstep::models {

class MnistNetImpl : public torch::nn::Cloneable<MnistNetImpl> {
 public:
  MnistNetImpl() { reset(); }
  void reset() override;

  // From float images {N, 1, 28, 28} to log-probabilities of 10 classes {N, 10}. Dropout (while training) draws from
  // LibTorch's generator.
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::Dropout2d conv2_drop_{nullptr};
  torch::nn::Linear fc1_{nullptr};
  torch::nn::Linear fc2_{nullptr};
};
TORCH_MODULE(MnistNet);

}  // namespace lockstep::models
