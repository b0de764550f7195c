// The arithmetic of synchronised batch normalisation on what the ranks have told one another: by loops for tensors in
// the memory of the CPU, by LibTorch's operators for all others. A layer has some hundred channels, and an
// operator costs more than computing as many values.
#pragma once

#include <torch/types.h>

#include <optional>

#include "nn/batch_norm/synchronised_batch_norm.h"

namespace lockstep::nn_detail {

// Over all ranks.
struct BatchStatistics {
  torch::Tensor mean;  // [C], as var; of the dtype of statistics
  torch::Tensor var;
  // Values per channel: a number on the CPU, on a device a tensor there ([], double), for which the program need not
  // wait.
  double count = 0;
  torch::Tensor count_there = {};
};

// Double for double inputs, else float.
torch::Dtype dtype_of_statistics(const torch::Tensor& input);
// `tensor`, which may be undefined, in that dtype.
torch::Tensor as_statistics(const torch::Tensor& tensor, const torch::Tensor& input);

// [2C + 2], of the dtype of statistics: mean, variance, and the number of values per channel in two parts, as a float
// has 24 bits.
torch::Tensor own_statistics(const torch::Tensor& input);

// From those of all ranks, [ranks, 2C + 2].
double count_over_ranks(const torch::Tensor& all);
// `count` is above 1; nothing: on a device, where it is not read. Updates the running statistics of the call.
BatchStatistics combine_statistics(const torch::Tensor& all, std::optional<double> count, const BatchNormCall& call);

// (x - mean) / sqrt(var + eps) * weight + bias, by channel. weight and bias may be undefined.
torch::Tensor normalise(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                        const torch::Tensor& mean, const torch::Tensor& var, double eps);

// [2C], of the dtype of statistics: this rank's P and S (see synchronised_batch_norm.cpp).
torch::Tensor own_sums(const torch::Tensor& grad_output, const torch::Tensor& input, const torch::Tensor& weight,
                       const BatchStatistics& statistics, double eps);
// `sums`: [2C], double, P and S over all ranks. grad_output has the memory format of the input.
torch::Tensor input_gradient(const torch::Tensor& grad_output, const torch::Tensor& input, const torch::Tensor& weight,
                             const torch::Tensor& sums, const BatchStatistics& statistics, double eps);

namespace by_loops {
// Whether the loops serve these tensors.
bool suit(const BatchNormCall& call);
bool suit(const torch::Tensor& grad_output, const torch::Tensor& input, const torch::Tensor& weight);

double count_over_ranks(const torch::Tensor& all);
BatchStatistics combine_statistics(const torch::Tensor& all, double count, const BatchNormCall& call);
torch::Tensor input_gradient(const torch::Tensor& grad_output, const torch::Tensor& input, const torch::Tensor& weight,
                             const torch::Tensor& sums, const BatchStatistics& statistics, double eps);
}  // namespace by_loops

}  // namespace lockstep::nn_detail
