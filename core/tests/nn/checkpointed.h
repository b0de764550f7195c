// Activation checkpointing in two forms: Lockstep's, with a backward pass inside the backward pass, and one that a
// program might write itself, with one backward pass.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/nn/activation_checkpoint.h"
#include "lockstep/nn/mixed_precision.h"

namespace lockstep::test {

using Segment = std::function<torch::Tensor(const torch::Tensor&)>;

namespace checkpoint_detail {

// A segment, and the autocast of its first computation.
struct Kept final : torch::CustomClassHolder {
  explicit Kept(Segment the_segment) : segment(std::move(the_segment)) {}
  torch::Tensor compute(const torch::Tensor& x) const {
    std::optional<Autocast> autocast;
    if (with_autocast) autocast.emplace(torch::kCPU, dtype);
    const torch::AutoGradMode with_gradients(true);
    return segment(x);
  }
  const Segment segment;
  const bool with_autocast = at::autocast::is_autocast_enabled(torch::kCPU);
  const torch::Dtype dtype = at::autocast::get_autocast_dtype(torch::kCPU);
};

inline void keep(torch::autograd::AutogradContext& context, const Segment& segment) {
  context.saved_data["segment"] = torch::IValue::make_capsule(c10::make_intrusive<Kept>(segment));
}

inline c10::intrusive_ptr<Kept> kept(torch::autograd::AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<Kept>(context.saved_data["segment"].toCapsule());
}

struct Functional : torch::autograd::Function<Functional> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const at::TensorList& parameters, const Segment& segment) {
    torch::autograd::variable_list saved = parameters.vec();
    saved.push_back(x);
    context->save_for_backward(saved);
    keep(*context, segment);
    return segment(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    torch::autograd::variable_list inputs = context->get_saved_variables();
    const torch::Tensor x = inputs.back().detach().requires_grad_();
    inputs.back() = x;
    torch::autograd::variable_list result = torch::autograd::grad({kept(*context)->compute(x)}, inputs, {gradients[0]});
    std::rotate(result.begin(), result.end() - 1, result.end());
    result.emplace_back();  // for the segment
    return result;
  }
};

}  // namespace checkpoint_detail

// A backward pass inside the backward pass.
inline torch::Tensor checkpoint_reentrant(const torch::Tensor& x, const Segment& segment) {
  return activation_checkpoint(segment, x);
}

// One backward pass, in which `parameters`, those of the segment, get their gradients.
inline torch::Tensor checkpoint_functional(const torch::Tensor& x, const std::vector<torch::Tensor>& parameters,
                                           const Segment& segment) {
  return checkpoint_detail::Functional::apply(x, at::TensorList(parameters), segment);
}

}  // namespace lockstep::test
