// Whether two tensors hold the same elements in the same places.
#pragma once

#include <torch/types.h>

namespace lockstep::nn_detail {

// Whether equal bytes in both mean equal elements: compares dtype, sizes, lazy conjugation and negation, and strides
// (except those of dimensions of size 1).
inline bool same_layout(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (a.is_conj() != b.is_conj() || a.is_neg() != b.is_neg()) return false;
  for (std::int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

inline bool same_memory(const torch::Tensor& a, const torch::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && same_layout(a, b);
}

}  // namespace lockstep::nn_detail
