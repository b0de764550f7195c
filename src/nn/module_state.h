// The state of a module across ranks: compare it, send it.
#pragma once

#include <torch/nn/module.h>

#include "backend.h"

namespace lockstep::nn_detail {

// Collective. Throws on every rank, naming the first parameter or buffer that differs and which ranks have what.
void check_same_model(const torch::nn::Module& module, const Backend& backend);

// Collective. Every rank's parameters and buffers become those of `source`.
void broadcast_state(const torch::nn::Module& module, const Backend& backend, int source);

}  // namespace lockstep::nn_detail
