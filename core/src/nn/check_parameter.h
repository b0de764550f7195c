// What autograd and the ranks can do nothing with.
#pragma once

#include "lockstep/nn/reducer.h"

namespace lockstep::nn_detail {

inline constexpr const char* kOnMeta =
    "is on the meta device, where it has no values; make the module on the device on which it trains";

// Throws for a parameter without values, and for one that autograd gives no gradient.
inline void check_parameter(const NamedParameter& parameter) {
  const torch::Tensor& tensor = parameter.tensor;
  TORCH_CHECK_VALUE(!tensor.is_meta(), "parameter '", parameter.name, "' ", kOnMeta);
  TORCH_CHECK_VALUE(tensor.is_leaf(), "parameter '", parameter.name, "' is the result of an operation (",
                    tensor.grad_fn()->name(),
                    "), so it gets no gradient; expected a leaf: register the values detached, as "
                    "value.detach().requires_grad_()");
}

}  // namespace lockstep::nn_detail
