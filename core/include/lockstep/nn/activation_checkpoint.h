// Activation checkpointing: a part of a model that keeps no activations, and computes them again in the backward pass.
// Saves memory, and costs a second forward pass of that part. As torch.utils.checkpoint with use_reentrant.
//
//   torch::Tensor y = lockstep::activation_checkpoint([&](const torch::Tensor& x) { return block->forward(x); }, x);
//
// `segment` is any callable of tensors that returns a tensor, or a std::vector of tensors. It is copied, and called in
// the forward pass and again in each backward pass; what it refers to must live that long. It must compute the same
// each time. Repeated calls find the random generators (of the CPU, and of the device of the inputs) and autocast in
// the state that they had in the first call. Parameters of the segment get their gradients, also if no input requires
// one. Without gradients (NoGradGuard) the segment is just called.
//
// Works under DistributedDataParallel in every mode (docs/ddp.md), with segments inside segments. A backward pass with
// create_graph throws, and so do torch::autograd::grad() and backward() with `inputs`: use backward() without them.
// Batch normalisation in a segment updates its running statistics twice. While gradients are on, the result requires a
// gradient, even if nothing in the segment does. A c10::ValueError is thrown if a tensor is undefined, and if the
// segment writes to an input, because its second call would begin with other values.
#pragma once

#include <torch/types.h>

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

namespace nn_detail {
std::vector<torch::Tensor> run_checkpointed(
    std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)> segment,
    const std::vector<torch::Tensor>& inputs);
}  // namespace nn_detail

template <typename Segment, typename... Inputs>
requires(std::is_convertible_v<const Inputs&, torch::Tensor>&&...) auto activation_checkpoint(Segment segment,
                                                                                              const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Segment&, const Inputs&...>>;
  constexpr bool kOne = std::is_same_v<Result, torch::Tensor>;
  static_assert(kOne || std::is_same_v<Result, std::vector<torch::Tensor>>,
                "activation_checkpoint: expected a segment that returns a torch::Tensor or a std::vector of them");
  auto call = [segment = std::move(segment)](const std::vector<torch::Tensor>& values) mutable {
    return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>)->std::vector<torch::Tensor> {
      if constexpr (kOne) {
        return {segment(values[kIndex]...)};
      } else {
        return segment(values[kIndex]...);
      }
    }
    (std::index_sequence_for<Inputs...>{});
  };
  Result result;
  if constexpr (kOne) {
    result = nn_detail::run_checkpointed(std::move(call), {inputs...})[0];
  } else {
    result = nn_detail::run_checkpointed(std::move(call), {inputs...});
  }
  return result;
}

}  // namespace lockstep
