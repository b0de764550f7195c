// The gradients of a module with their names.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "lockstep/nn/reducer.h"

namespace lockstep::nn_detail {

// Each parameter once, under its first name.
std::vector<NamedParameter> distinct_parameters(const torch::nn::Module& module);

// The tensors alone.
std::vector<torch::Tensor> without_names(const std::vector<NamedParameter>& named);

// Returns the values of each defined gradient. Coalesces sparse gradients and returns the values of their rows.
std::vector<NamedParameter> gradient_values(const std::vector<NamedParameter>& parameters);

// Returns the norm of all values as one vector: a tensor of one number, undefined if there are no gradients.
torch::Tensor total_norm(const std::vector<NamedParameter>& gradients, double norm_type);

// Scales them so that their norm, which is `norm`, is at most `max_norm`.
void scale_to_norm(const std::vector<NamedParameter>& gradients, const torch::Tensor& norm, double max_norm);

// On the device of the first; undefined where there are no numbers. Whatever is added to an infinity or a NaN, the sum
// is one of them. A sum is the fastest reading: nothing is stored.
torch::Tensor sum_of(const std::vector<torch::Tensor>& values);
// True: all values are finite. False: some are not, or their sum is too large for its dtype. Reads them once.
bool have_finite_sum(const std::vector<torch::Tensor>& values);

// "'fc.weight', 'fc.bias' and 3 others"; empty if all are finite.
std::string names_of_nonfinite(const std::vector<NamedParameter>& values);

}  // namespace lockstep::nn_detail
