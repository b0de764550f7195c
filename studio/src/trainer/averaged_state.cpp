#include "averaged_state.h"

namespace lockstep::trainer_detail {

checkpoint::StateDict averaged_state(const torch::nn::Module& model,
                                     const std::map<std::string, torch::Tensor>& averages) {
  checkpoint::StateDict state;
  for (const auto& [name, average] : averages) state.insert(name, average);
  std::map<const void*, std::string> first_names;
  for (const auto& item : model.named_parameters()) {
    const auto [first, is_new] = first_names.emplace(item.value().unsafeGetTensorImpl(), item.key());
    const auto average = averages.find(first->second);
    if (!is_new && average != averages.end() && !state.contains(item.key())) state.insert(item.key(), average->second);
  }
  return state;
}

}  // namespace lockstep::trainer_detail
