// Models for the tests of DataParallel, and the comparison with the same model on one device.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "lockstep/nn/data_parallel.h"

namespace lockstep::test {

// Convolution, a tied linear layer used twice, and an embedding whose gradient is sparse. Double: what differs is not
// rounding.
struct MixedImpl : torch::nn::Cloneable<MixedImpl> {
  MixedImpl() { reset(); }
  void reset() override {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)));
    square = register_module("square", torch::nn::Linear(16, 16));
    again = register_module("again", square);
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 16).sparse(true)));
    unused = register_parameter("unused", torch::zeros({3}));
    frozen = register_parameter("frozen", torch::ones({16}), /*requires_grad=*/false);
    to(torch::kDouble);
  }
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& images, const torch::Tensor& ids) {
    const torch::Tensor x = torch::tanh(convolution(images)).flatten(1);
    const torch::Tensor y = square(torch::tanh(again(x))) * frozen + table(ids);
    return {y, y.square().sum(1)};
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::Linear square{nullptr}, again{nullptr};
  torch::nn::Embedding table{nullptr};
  torch::Tensor unused, frozen;
};
TORCH_MODULE(Mixed);

// Seeded, so that all are equal.
template <typename Net>
Net seeded() {
  torch::manual_seed(3);
  return Net();
}

inline torch::Tensor gradient_of(const torch::Tensor& parameter) {
  return parameter.grad().defined() ? parameter.grad().to_dense() : torch::Tensor();
}

// Relative to the largest element.
inline void expect_close(const torch::Tensor& ours, const torch::Tensor& theirs, double relative,
                         const std::string& what) {
  ASSERT_EQ(ours.defined(), theirs.defined()) << what;
  if (!ours.defined()) return;
  ASSERT_EQ(ours.sizes(), theirs.sizes()) << what;
  if (ours.numel() == 0) return;
  const double difference = (ours.detach() - theirs.detach()).abs().max().item<double>();
  EXPECT_LE(difference, relative * theirs.abs().max().item<double>()) << what;
}

inline void expect_close_models(torch::nn::Module& ours, torch::nn::Module& theirs, double relative,
                                const std::string& where) {
  const auto mine = ours.named_parameters();
  for (const auto& item : theirs.named_parameters()) {
    expect_close(mine[item.key()], item.value(), relative, where + ": " + item.key());
    expect_close(gradient_of(mine[item.key()]), gradient_of(item.value()), relative, where + ": grad of " + item.key());
  }
}

}  // namespace lockstep::test
