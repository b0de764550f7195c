// The state of an optimizer, whatever its kind.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstddef>
#include <memory>
#include <string>

namespace lockstep::nn_detail {

// Bytes of all tensors in its state.
std::size_t state_bytes(const torch::optim::Optimizer& optimizer);

// What its own save() writes and its own load() reads. load() replaces state and options. Tensors come to `device`,
// wherever they were written.
std::string optimizer_bytes(const torch::optim::Optimizer& optimizer);
void read_optimizer(const std::string& bytes, torch::optim::Optimizer& optimizer, torch::Device device);

// A copy of the state of one parameter, with tensors of its own on `device`.
std::unique_ptr<torch::optim::OptimizerParamState> copy_state(const torch::optim::OptimizerParamState& state,
                                                              torch::Device device);

// Gives the tensors of a state of LibTorch's kinds the dtype of their parameter, as Python does when it loads a state:
// else a state of bfloat16 would stay one. Other kinds of state keep theirs.
void convert_state(torch::optim::OptimizerParamState& state, const torch::Tensor& parameter);

}  // namespace lockstep::nn_detail
