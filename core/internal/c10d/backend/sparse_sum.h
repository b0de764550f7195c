// Sums of sparse (COO) tensors over any backend: every rank gathers the indices and values of all ranks, however many,
// and adds them up.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "c10d/backend/call_checks.h"

namespace lockstep {

// Whether these are the arguments of an all_reduce that sum_sparse serves.
bool is_sparse_sum(const std::vector<at::Tensor>& tensors);

// The caller, for errors.
struct SparseCaller {
  std::string who;          // as from describe_member
  std::string explanation;  // as from explain_ranks
};

// The checks that one rank can do alone.
void check_sparse_sum(const CallChecks& checks, const at::Tensor& tensor, const c10d::AllreduceOptions& opts);

// Writes the sum to `tensor`. Call check_sparse_sum first. Collective; blocks. The backend must serve CPU tensors.
void sum_sparse(c10d::Backend& group, const SparseCaller& caller, const at::Tensor& tensor,
                const c10d::AllreduceOptions& opts);

}  // namespace lockstep
