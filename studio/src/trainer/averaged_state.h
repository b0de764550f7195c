// The averages of a checkpoint as a state dict of its model.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>

#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::trainer_detail {

inline constexpr const char* kAverages = "ema";  // their name in a checkpoint

// A parameter that layers share has one average, under the first of its names. The state dict has it under all of them.
checkpoint::StateDict averaged_state(const torch::nn::Module& model,
                                     const std::map<std::string, torch::Tensor>& averages);

}  // namespace lockstep::trainer_detail
