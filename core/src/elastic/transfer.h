// A state on its way from one rank to another: messages of the world, without files.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep::elastic_detail {

// Something that a rank needs for the next step: a model, an optimizer, or whatever `save` writes and `restore` reads.
struct Part {
  torch::nn::Module* model = nullptr;
  torch::optim::Optimizer* optimizer = nullptr;
  std::function<void(checkpoint::Checkpoint&)> save = {};
  std::function<void(const checkpoint::Checkpoint&)> restore = {};
  bool is_programs = false;  // `save` is the program's own function, for one rank alone
};

// A number for the bits of all `parts` but the program's own values; not 0. Hyperparameters of optimizers, schedulers
// and cursors count. Reads each tensor once. Throws what saving a part throws.
double hash_of_state(const std::vector<Part>& parts);

// Both block. `to` and `from`: ranks of the world. Parts are the same on both, in the same order. Large tensors of a
// model or an optimizer arrive in the receiver's own memory. An error leaves some parts old, and some new or torn.
void send_state(const std::vector<Part>& parts, int to);
void receive_state(const std::vector<Part>& parts, int from);

}  // namespace lockstep::elastic_detail
