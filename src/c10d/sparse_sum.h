// Sums of sparse (COO) tensors over any backend: every rank gathers all indices and values, of any number, and adds
// them up.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "c10d/call_checks.h"

namespace lockstep {

// Whether these are the arguments of an all_reduce that sum_sparse serves.
bool is_sparse_sum(const std::vector<at::Tensor>& tensors);

// Who calls, for errors.
struct SparseCaller {
  std::string who;          // as from describe_member
  std::string explanation;  // as from explain_ranks
};

// Throws what one rank can find wrong alone.
void check_sparse_sum(const CallChecks& checks, const at::Tensor& tensor, const c10d::AllreduceOptions& opts);

// After that. Leaves the sum in `tensor`. Blocks. Collective; the backend must serve CPU tensors.
void sum_sparse(c10d::Backend& group, const SparseCaller& caller, const at::Tensor& tensor,
                const c10d::AllreduceOptions& opts);

}  // namespace lockstep
