// Batch normalisation over the batches of all ranks of a group: the function behind SyncBatchNorm and converted layers.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "base/call_place.h"
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

// What errors of a layer's collectives name on every rank, unless the program has a CallScope of its own: the line that
// has made or converted the layer, because LibTorch's modules call it; and a label.
struct LayerPlace {
  CallSite site;
  TextNumber label = 0;
};

// Collective over the group, which has other ranks. Differentiable once. `layer` is for messages of this rank.
torch::Tensor synchronised_batch_norm(const BatchNormCall& call, const ProcessGroup& group, const std::string& layer,
                                      const LayerPlace& place);

// The group of its own in which these layers talk, beside that of the program (null: the world). The first call, which
// is collective, makes it.
ProcessGroup group_of_synchronised_layers(const ProcessGroup& group, c10::DeviceType device);

struct SynchronisedLayer {
  std::string name;
  ProcessGroup group;  // null: the world
  const torch::nn::Module* module;
};
// The layers in `module` that synchronise, in the order of named_modules(). Without those whose group was destroyed.
std::vector<SynchronisedLayer> synchronised_layers(const torch::nn::Module& module);

}  // namespace lockstep::nn_detail
