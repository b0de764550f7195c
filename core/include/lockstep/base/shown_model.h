// A torch::nn::Module that shows the tensors of another model: what as_module() of lockstep/nn/as_module.h returns.
// That model may put other tensors in the place of its own. So whoever reads the parameters or buffers of a module
// calls with_present_tensors(module) first.
//
// Free of LibTorch's headers, because layers that know nothing of one another read modules.
#pragma once

#include <cstdint>

namespace lockstep {

class ShownModel {
 public:
  virtual ~ShownModel() = default;
  // Takes the tensors that the model has now, also in the parts of this module. Returns how often it has taken other
  // tensors so far. Throws what the model's functions throw, and has its earlier tensors then.
  virtual std::uint64_t follow() const = 0;

 protected:
  ShownModel() = default;
  ShownModel(const ShownModel&) = default;
  ShownModel& operator=(const ShownModel&) = default;
};

// Calls follow() of every view in `module` (a torch::nn::Module), and returns the sum of the results.
template <typename Module>
std::uint64_t follow_models(const Module& module) {
  if (const auto* const shown = dynamic_cast<const ShownModel*>(&module)) return shown->follow();
  std::uint64_t times = 0;
  for (const auto& child : module.children()) {
    if (child) times += follow_models(*child);
  }
  return times;
}

// `module`, after follow_models().
template <typename Module>
Module& with_present_tensors(Module& module) {
  follow_models(module);
  return module;
}

}  // namespace lockstep
