#include "model_state.h"

#include <map>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kModel = "model.";

}  // namespace

void add_model(TensorFile& file, const torch::nn::Module& model) {
  const StateDict state = state_dict(model);
  std::erase_if(file.tensors, [](const auto& entry) { return entry.first.starts_with(kModel); });
  for (const auto& entry : state) file.tensors[std::string(kModel) + entry.key()] = *entry;
}

void restore_model(const TensorFile& file, torch::nn::Module& model) {
  StateDict saved;
  for (const auto& [name, tensor] : file.tensors) {
    if (name.starts_with(kModel)) saved.insert(name.substr(kModel.size()), tensor);
  }
  load_state_dict(model, saved);
}

}  // namespace lockstep::checkpoint
