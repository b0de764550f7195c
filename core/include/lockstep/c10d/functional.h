// Collectives with a gradient: the result depends on the tensors of all ranks, and the backward pass sends the
// gradients back. For losses over all ranks (contrastive learning), and layers that are spread over ranks.
//
//   const torch::Tensor all = lockstep::functional::all_gather_into_tensor(features);   // [ranks * n, ...]
//   loss_of(features, all).backward();
//
// Each function takes a tensor and returns a new tensor. torch.distributed.nn.functional has the same functions; the
// names here are the names of collectives.h. The backward pass computes the gradient of the sum of all ranks' losses.
// Example: all ranks gather a rank's values and use them; the gradient of these values is then the sum of what all
// ranks' losses give.
//
// Forward and backward pass are collective. All ranks call the same functions in the same order. An input requires a
// gradient on all ranks or on none, and the loss depends on a result on all ranks or on none. Inside a module that is
// wrapped with DistributedDataParallel this works as it is, because the wrapper talks in a group of its own. A gradient
// costs one collective of the same size. The gradient of a gradient works too.
//
// The functions block and fail as the functions of collectives.h do. An error in the backward pass names the line of
// the forward call. c10::ValueError for a tensor that requires a gradient and an `op` that has none here (MIN, MAX,
// PRODUCT, ...).
#pragma once

#include <torch/types.h>

#include "lockstep/base/call_site.h"
#include "lockstep/c10d/collectives.h"

namespace lockstep::functional {

// The sum (or mean, or premul_sum) over ranks. Its gradient is the same reduction of all ranks' gradients.
torch::Tensor all_reduce(const torch::Tensor& input, const ReductionOptions& options = {},
                         CallSite site = CallSite::here());

// Concatenates the ranks' inputs, [n, ...] each, to [ranks * n, ...] in rank order. Its gradient is a reduce-scatter.
torch::Tensor all_gather_into_tensor(const torch::Tensor& input, const CollectiveOptions& options = {},
                                     CallSite site = CallSite::here());

// Takes [ranks * n, ...] on each rank; returns this rank's part, [n, ...], of the sum or mean. Its gradient is an
// all-gather. premul_sum has no gradient here.
torch::Tensor reduce_scatter_tensor(const torch::Tensor& input, const ReductionOptions& options = {},
                                    CallSite site = CallSite::here());

// Part i of `input` goes to rank i; the result has a part from each rank. The gradient of a part goes back to the rank
// that sent the part.
torch::Tensor all_to_all_single(const torch::Tensor& input, const AllToAllSingleOptions& options = {},
                                CallSite site = CallSite::here());

// Returns the values of rank `src` of the world on every rank. On other ranks `input` gives shape, dtype and device; if
// it requires a gradient, it gets zeros. The gradient on `src` is the sum of all ranks' gradients. Only `src` knows
// whether its values require a gradient. So outside of a NoGradGuard the result requires a gradient on every rank, and
// the backward pass communicates: for values without gradients use lockstep::broadcast. torch::autograd::grad(), and
// backward() with `inputs`, must ask for the gradient of `input` on all ranks or on none.
torch::Tensor broadcast(const torch::Tensor& input, int src, const CollectiveOptions& options = {},
                        CallSite site = CallSite::here());

}  // namespace lockstep::functional
