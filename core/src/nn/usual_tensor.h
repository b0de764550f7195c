// Which calls and tensors the faster ways of LibTorch's operators take.
#pragma once

#include <ATen/FuncTorchTLS.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/types.h>

namespace lockstep::nn_detail {

// Nothing looks at the operators that are called: no tracer, and no transform of functorch (vmap, grad).
inline bool is_usual_call() {
  return !torch::jit::tracer::isTracing() && at::functorch::functorchTLSAccessor() == nullptr;
}

// On the CPU, and no subclass, wrapper (vmap), tangent of forward-mode differentiation or lazy view.
inline bool is_usual(const torch::Tensor& tensor) {
  const c10::DispatchKeySet own =
      tensor.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView - c10::autocast_dispatch_keyset;
  return own == c10::DispatchKeySet(c10::DispatchKey::CPU) && !tensor._fw_grad(/*level=*/0).defined();
}

}  // namespace lockstep::nn_detail
