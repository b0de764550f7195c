// The checks of single methods of a backend, made of those of CallChecks. Shared by the backends.
//
// Checks of lists come before the tensors are prepared, since they only count. Checks of dtypes and sizes come after:
// they expect tensors that were found readable or writable.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "c10d/backend/call_checks.h"

namespace lockstep {

// Return the only tensor of this rank: its input, in check_scatter and check_reduce_scatter its output.
const at::Tensor& check_reduce(const CallChecks& checks, const std::vector<at::Tensor>& tensors,
                               const c10d::ReduceOptions& opts);
const at::Tensor& check_gather(const CallChecks& checks, const std::vector<at::Tensor>& inputs,
                               const c10d::GatherOptions& opts);
const at::Tensor& check_scatter(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                                const c10d::ScatterOptions& opts);
const at::Tensor& check_reduce_scatter(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                                       const std::vector<std::vector<at::Tensor>>& inputs);

// A list of outputs for each input. The list of a single input has a tensor per rank.
void check_all_gather(const CallChecks& checks, const std::vector<std::vector<at::Tensor>>& outputs,
                      const std::vector<at::Tensor>& inputs);
// Returns the outputs of each input, in the order of the ranks; `outputs` has those of each rank.
std::vector<std::vector<at::Tensor>> check_all_gather_coalesced(const CallChecks& checks,
                                                                const std::vector<std::vector<at::Tensor>>& outputs,
                                                                const std::vector<at::Tensor>& inputs);
void check_all_to_all(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                      const std::vector<at::Tensor>& inputs);
// An input for each output: all_gather_into_tensor_coalesced, reduce_scatter_tensor_coalesced.
void check_coalesced(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                     const std::vector<at::Tensor>& inputs);

// Dtypes, and the elements that `rank`, this one, sends to itself. all_gather, gather: `outputs` has a tensor per rank.
void check_outputs_of_ranks(const CallChecks& checks, const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                            int rank);
// scatter, reduce_scatter: `inputs` has a tensor per rank.
void check_inputs_of_ranks(const CallChecks& checks, const std::vector<at::Tensor>& inputs, const at::Tensor& output,
                           int rank);
// all_to_all: both have.
void check_exchange(const CallChecks& checks, const std::vector<at::Tensor>& outputs,
                    const std::vector<at::Tensor>& inputs, int rank);

// One tensor holds the slices of all ranks. These two also check that the input is readable.
void check_all_gather_into_tensor(const CallChecks& checks, const at::Tensor& output, const at::Tensor& input);
void check_reduce_scatter_tensor(const CallChecks& checks, const at::Tensor& output, const at::Tensor& input);

// The elements of each rank in both tensors of all_to_all_single.
struct ExchangeSplits {
  std::vector<std::int64_t> inputs;
  std::vector<std::int64_t> outputs;
};
ExchangeSplits check_all_to_all_single(const CallChecks& checks, const at::Tensor& output, const at::Tensor& input,
                                       const std::vector<std::int64_t>& output_splits,
                                       const std::vector<std::int64_t>& input_splits);

}  // namespace lockstep
