#include "c10d/staging.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

bool can_stage(c10::DeviceType device) {
  return device == c10::DeviceType::CPU || device == c10::DeviceType::CUDA;
}

at::Tensor make_host_memory(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(),
                   at::TensorOptions(tensor.scalar_type()).device(at::kCPU).pinned_memory(!tensor.is_cpu()));
}

void wait_for_device(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  device.getStream(tensor.device()).synchronize();
}

void copy_elements(const at::Tensor& to, const at::Tensor& from) {
  const c10::AutoGradMode no_grad(false);
  const c10::InferenceMode inference(to.is_inference());  // tensors of inference mode can be written only in it
  to.copy_(from, /*non_blocking=*/false);
}

void copy_back(const std::vector<CopyBack>& copies) {
  for (const CopyBack& copy : copies) copy_elements(copy.destination, copy.temporary);
}

}  // namespace lockstep
