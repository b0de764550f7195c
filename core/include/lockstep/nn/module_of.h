// The module behind what users pass on: a holder made with TORCH_MODULE, a shared_ptr to a module, or the module
// itself.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>

namespace lockstep::nn_detail {

template <typename Net>
struct ModuleOf {
  using type = Net;
};
template <typename Module>
struct ModuleOf<std::shared_ptr<Module>> {
  using type = Module;
};
template <typename Net>
requires std::is_base_of_v<torch::nn::ModuleHolder<typename Net::ContainedType>, Net>
struct ModuleOf<Net> {
  using type = typename Net::ContainedType;
};

// Null for an empty holder.
template <typename Net>
std::shared_ptr<typename ModuleOf<Net>::type> pointer_to(Net& net) {
  using Module = typename ModuleOf<Net>::type;
  if constexpr (std::is_same_v<Net, std::shared_ptr<Module>>) {
    return net;
  } else if constexpr (std::is_same_v<Net, Module>) {
    // The module lives in the wrapper, not on the heap: nobody owns it through this pointer.
    return std::shared_ptr<Module>(std::shared_ptr<void>(), &net);
  } else {
    return net.is_empty() ? nullptr : net.ptr();
  }
}

}  // namespace lockstep::nn_detail
