// Batch normalisation over the batches of all ranks of a group: the function behind SyncBatchNorm and converted layers.
#pragma once

#include <torch/types.h>

#include <string>

#include "lockstep/c10d/process_groups.h"

namespace lockstep::nn_detail {

struct BatchNormCall {
  torch::Tensor input;
  torch::Tensor weight;  // these four may be undefined
  torch::Tensor bias;
  torch::Tensor running_mean;  // updated in place
  torch::Tensor running_var;
  double momentum = 0;
  double eps = 0;
};

// Whether there are other ranks: a group (null: the world) of more than one.
bool has_other_ranks(const ProcessGroup& group);

// Collective over the group, which has other ranks. Differentiable once. `layer` is for messages.
torch::Tensor synchronised_batch_norm(const BatchNormCall& call, const ProcessGroup& group, const std::string& layer);

}  // namespace lockstep::nn_detail
