// The model of the grid of options; tests/parity/ddp_options.py has the same.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "nn/checkpointed.h"

namespace lockstep::test {

constexpr int kInputs = 48, kWidth = 32, kOutputs = 16;
constexpr int kWords = 20;

// Layers beside those that every model has, and what is checkpointed.
struct NetLayers {
  std::string checkpoint;
  bool extra = false;
  bool sparse = false;
  bool norm = false;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const NetLayers& layers) : checkpoint(layers.checkpoint) {
    // One after the other: the order in which they draw their weights counts.
    first = register_module("first", torch::nn::Linear(kInputs, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
    third = register_module("third", torch::nn::Linear(kWidth, kWidth));
    last = register_module("last", torch::nn::Linear(kWidth, kOutputs));
    if (layers.extra) extra = register_module("extra", torch::nn::Linear(kWidth, kOutputs));
    if (layers.sparse)
      table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, kWidth).sparse(true)));
    if (layers.norm) norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
  }

  torch::Tensor forward(const torch::Tensor& x, bool with_extra) {
    const Segment front = [this](const torch::Tensor& y) { return begin(y); };
    const Segment middle = [this](const torch::Tensor& y) { return torch::tanh(third(torch::tanh(second(y)))); };
    const Segment back = [this, with_extra](const torch::Tensor& y) { return end(y, with_extra); };
    if (checkpoint == "no") return back(middle(front(x)));
    if (checkpoint == "whole")
      return checkpoint_reentrant(x, [=](const torch::Tensor& y) { return back(middle(front(y))); });
    if (checkpoint == "nested") {
      const Segment begin = [=](const torch::Tensor& y) { return middle(checkpoint_reentrant(y, front)); };
      return checkpoint_reentrant(x, [=](const torch::Tensor& y) { return back(checkpoint_reentrant(y, begin)); });
    }
    if (checkpoint != "plain")
      return checkpoint_reentrant(checkpoint_reentrant(checkpoint_reentrant(x, front), middle), back);
    return plain(x, front, middle, back, with_extra);
  }

  torch::Tensor plain(const torch::Tensor& x, const Segment& front, const Segment& middle, const Segment& back,
                      bool with_extra) {
    std::vector<torch::Tensor> of_front = first->parameters();
    if (table) of_front.push_back(table->weight);
    if (norm) of_front.insert(of_front.end(), {norm->weight, norm->bias});
    std::vector<torch::Tensor> of_back = last->parameters();
    if (with_extra) of_back.insert(of_back.end(), {extra->weight, extra->bias});
    const torch::Tensor y = checkpoint_functional(x, of_front, front);
    const torch::Tensor z =
        checkpoint_functional(y, {second->weight, second->bias, third->weight, third->bias}, middle);
    return checkpoint_functional(z, of_back, back);
  }

  torch::Tensor begin(const torch::Tensor& input) {
    torch::Tensor x = torch::tanh(first(input));
    // Doubled, so that its gradient has memory of its own: PyTorch divides a sparse gradient in place, and the gradient
    // of `first` is in the same memory otherwise (DdpModelsMulti.DividesASparseGradientAlone).
    if (table) x = x + 2 * table((input.select(1, 0).abs() * 8).to(torch::kLong).clamp_max(kWords - 1));
    return norm ? norm(x) : x;
  }
  torch::Tensor end(torch::Tensor x, bool with_extra) {
    if (checkpoint == "shared") x = torch::tanh(second(x));
    return with_extra ? last(x) + extra(x) : last(x);
  }

  const std::string checkpoint;
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, last{nullptr}, extra{nullptr};
  torch::nn::Embedding table{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

}  // namespace lockstep::test
