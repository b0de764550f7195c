// What a checkpoint of a training has besides the model, in the form in which programs want it.
#pragma once

#include <torch/nn/module.h>

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

struct NamedClasses {
  std::string where;  // "in the checkpoint"
  std::string text;   // text_of_classes()
};
// Says which is the first class that differs; empty: none.
std::string first_other_class(const NamedClasses& one, const NamedClasses& other);

}  // namespace lockstep::trainer_detail
