// Autocast, which every maker of a device brings along: which operations take bfloat16 or half, and which float.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "support/test_device/kernels.h"

namespace lockstep::test::device {

void register_autocast() {
  static torch::Library every(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  every.fallback(torch::CppFunction::makeFallthrough());
  static torch::Library m(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)  // what torch::nn::Linear calls for matrices
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

}  // namespace lockstep::test::device
