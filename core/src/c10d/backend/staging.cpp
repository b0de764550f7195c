#include "c10d/backend/staging.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {
namespace {

bool has_pinned_memory(c10::DeviceType device) {
  if (device == c10::DeviceType::PrivateUse1) return at::isPrivateUse1HooksRegistered();
  return device == c10::DeviceType::CUDA || device == c10::DeviceType::XPU;
}

}  // namespace

// Asks the registry of device guards, not for accelerators: if LibTorch is asked for these before its CUDA library is
// loaded, it remembers that there is no CUDA.
bool can_stage(c10::DeviceType device) {
  switch (device) {
    case c10::DeviceType::CPU:
    case c10::DeviceType::CUDA: return true;
    case c10::DeviceType::XPU:
    case c10::DeviceType::MPS:
    case c10::DeviceType::HPU:
    case c10::DeviceType::PrivateUse1: return c10::impl::hasDeviceGuardImpl(device);
    default: return false;
  }
}

std::vector<c10::DeviceType> staged_devices() {
  std::vector<c10::DeviceType> devices;
  for (int type = 0; type < c10::COMPILE_TIME_MAX_DEVICE_TYPES; ++type) {
    const auto device = static_cast<c10::DeviceType>(type);
    if (can_stage(device)) devices.push_back(device);
  }
  return devices;
}

at::Tensor make_host_memory(const at::Tensor& tensor) {
  const auto options = at::TensorOptions(tensor.scalar_type()).device(at::kCPU);
  if (!has_pinned_memory(tensor.device().type())) return at::empty(tensor.sizes(), options);
  try {
    return at::empty(tensor.sizes(), options.pinned_memory(true));
  } catch (const c10::NotImplementedError&) {  // a device of another maker need not have it
    return at::empty(tensor.sizes(), options);
  }
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
