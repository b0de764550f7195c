#include "tensor_rules.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <sstream>

namespace lockstep::checkpoint {

std::string why_not_saved(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "is undefined";
  if (tensor.layout() != torch::kStrided) {
    std::ostringstream layout;
    layout << tensor.layout();
    return fmt::format("has layout {}, expected a dense tensor: call to_dense()", layout.str());
  }
  if (tensor.is_nested()) return "is a nested tensor, expected a dense one";
  if (tensor.is_quantized()) return fmt::format("is quantized ({})", c10::toString(tensor.scalar_type()));
  if (tensor.is_meta()) return "is on the meta device, which holds no values";
  return "";
}

std::string why_not_overwritten(const torch::Tensor& tensor) {
  if (std::string reason = why_not_saved(tensor); !reason.empty()) return reason;
  if (tensor._is_zerotensor()) return "is an immutable tensor of zeros";
  if (tensor.is_inference() && !c10::InferenceMode::is_enabled()) {
    return "was made in inference mode, and only that mode can change it";
  }
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return "has elements that share memory (an expanded tensor): clone() it";
  }
  return "";
}

void wait_for_copy(const torch::Tensor& copy) {
  if (!why_not_saved(copy).empty() || copy.is_cpu()) return;
  c10::impl::VirtualGuardImpl(copy.device().type()).getStream(copy.device()).synchronize();
}

}  // namespace lockstep::checkpoint
