// Tensors of files from anyone, for calculations and messages.
#pragma once

#include <torch/torch.h>

#include <string>

#include "checkpoint/dtype_names.h"
#include "checkpoint/tensor_rules.h"

namespace lockstep::checkpoint {

inline std::string dtype_text(const torch::Tensor& tensor) {
  const DtypeNames* names = find_dtype(tensor.scalar_type());
  return names == nullptr ? c10::toString(tensor.scalar_type()) : std::string(names->name);
}

// The values without those that are repeated by a stride of 0: a short file can have a tensor of any size.
inline torch::Tensor without_repeats(torch::Tensor tensor) {
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) tensor = tensor.narrow(i, 0, 1);
  }
  return tensor;
}

// How many of its values (repeated ones count once) are NaN or infinite.
inline std::int64_t not_finite(const torch::Tensor& tensor) {
  if (!tensor.defined() || !why_not_saved(tensor).empty()) return 0;
  if (!tensor.is_complex() && !tensor.is_floating_point()) return 0;
  const auto dtype = tensor.is_complex() ? torch::kComplexDouble : torch::kDouble;
  return (~torch::isfinite(without_repeats(tensor).to(dtype))).sum().item<std::int64_t>();
}

}  // namespace lockstep::checkpoint
