// The model behind what users pass on: a holder made with TORCH_MODULE, a shared_ptr to a model, or the model itself.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>

namespace lockstep::nn_detail {

// `is_handle`: a copy of the Net is the same model.
template <typename Net>
struct ModelOf {
  using type = Net;
  static constexpr bool is_handle =
      std::is_base_of_v<torch::jit::Module, Net> || std::is_same_v<torch::nn::AnyModule, Net>;
};
template <typename Model>
struct ModelOf<std::shared_ptr<Model>> {
  using type = Model;
  static constexpr bool is_handle = true;
};
template <typename Net>
requires std::is_base_of_v<torch::nn::ModuleHolder<typename Net::ContainedType>, Net>
struct ModelOf<Net> {
  using type = typename Net::ContainedType;
  static constexpr bool is_handle = true;
};
template <typename Net>
inline constexpr bool kIsHandle = ModelOf<Net>::is_handle;

// Null for an empty holder.
template <typename Net>
std::shared_ptr<typename ModelOf<Net>::type> pointer_to(Net& net) {
  using Model = typename ModelOf<Net>::type;
  if constexpr (std::is_same_v<Net, std::shared_ptr<Model>>) {
    return net;
  } else if constexpr (std::is_same_v<Net, Model>) {
    // The model is the caller's, or lives in a wrapper: nobody owns it through this pointer.
    return std::shared_ptr<Model>(std::shared_ptr<void>(), &net);
  } else {
    return net.is_empty() ? nullptr : net.ptr();
  }
}

}  // namespace lockstep::nn_detail
