// What the shared step must know of LibTorch's optimizers: their options as numbers, and the tensors of their state.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::nn_detail {

// The most tensors that a state has for each parameter.
inline constexpr std::size_t kStateTensors = 3;

// Names and values, in a fixed order. Throws c10::ValueError for an optimizer that is not offered.
std::vector<std::pair<const char*, double>> numbers_of(const torch::optim::OptimizerOptions& options);

// Which tensors the state of a parameter has, once it has taken a step with these options.
std::array<bool, kStateTensors> state_tensors(const torch::optim::OptimizerOptions& options);
// A state without tensors, before its first step; null: a step with these options makes none.
std::unique_ptr<torch::optim::OptimizerParamState> empty_state(const torch::optim::OptimizerOptions& options);
// The tensors of a state, in that order; null: this kind has no such tensor.
std::array<torch::Tensor*, kStateTensors> state_tensors_of(torch::optim::OptimizerParamState& state);
// The number of its steps; null: this kind does not count them.
std::int64_t* steps_of(torch::optim::OptimizerParamState& state);
// Whether a parameter cannot take its first step without a state (Adagrad's constructor makes it).
bool needs_state(const torch::optim::OptimizerOptions& options);
// Whether its step() counts as a change of the parameter for autograd (SGD's does not).
bool counts_changes(const torch::optim::OptimizerOptions& options);

}  // namespace lockstep::nn_detail
