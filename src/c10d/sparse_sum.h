// Sums of sparse (COO) tensors over any backend: every rank gathers all indices and values, of any number, and adds
// them up.
#pragma once

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace lockstep {

// Whether these are the arguments of an all_reduce that sum_sparse serves.
bool is_sparse_sum(const std::vector<at::Tensor>& tensors);

// Leaves the sum in `tensor`. Blocks. Collective; the backend must serve CPU tensors.
void sum_sparse(c10d::Backend& group, const at::Tensor& tensor, const c10d::AllreduceOptions& opts);

}  // namespace lockstep
