// What stands for the reader's model and loss in the code of the pages.
#pragma once

#include <torch/torch.h>

namespace lockstep {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override { line = register_module("line", torch::nn::Linear(1, 1)); }
  torch::Tensor forward(const torch::Tensor& x) { return line(x); }
  torch::nn::Linear line{nullptr};
};
TORCH_MODULE(Net);

using Loss = torch::Tensor (*)(const torch::Tensor&, const torch::Tensor&);

}  // namespace lockstep
