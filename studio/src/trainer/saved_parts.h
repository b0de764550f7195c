// What a checkpoint of a training has besides the model, in the form in which programs want it.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::trainer_detail {

inline constexpr const char* kAverages = "ema";  // their name in a checkpoint

// The averages of a checkpoint as a state dict of its model. A parameter that layers share has one average, under the
// first of its names. The state dict has it under all of them.
checkpoint::StateDict averaged_state(const torch::nn::Module& model,
                                     const std::map<std::string, torch::Tensor>& averages);

inline constexpr const char* kClassesValue = "classes";  // its name in a checkpoint

// One name a line.
std::string text_of_classes(const std::vector<std::string>& names);

inline constexpr const char* kTrainedValue = "trained";  // its name in a checkpoint

// The names of the optimizer's parameters in the optimizer's order, one a line; empty for a parameter that is not the
// model's. The optimizer's states of a checkpoint belong to parameters by their numbers in this order.
std::string text_of_trained(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer);

struct NamedLines {
  std::string where;  // "in the checkpoint"
  std::string text;   // text_of_classes() or text_of_trained()
};
// Says which is the first name that differs; empty: none. `what`: whose names they are.
std::string first_other_name(const NamedLines& one, const NamedLines& other, const std::string& what = "class");

}  // namespace lockstep::trainer_detail
