// Compares and sends the state of a module across ranks.
#pragma once

#include <torch/nn/module.h>

#include "backend.h"

namespace lockstep::nn_detail {

// Collective. Throws on every rank if models differ: names the first parameter or buffer that does, and what each rank
// has.
void check_same_model(const torch::nn::Module& module, const Backend& backend);

// Collective. Parameters and buffers of every rank become those of `source`.
void broadcast_state(const torch::nn::Module& module, const Backend& backend, int source);

}  // namespace lockstep::nn_detail
