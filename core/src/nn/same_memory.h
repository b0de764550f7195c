// Whether two tensors hold the same elements in the same places.
#pragma once

#include <torch/types.h>

#include <cstddef>

namespace lockstep::nn_detail {

// Whether these strides put the elements of a tensor in the same places. Those of dimensions of size 1 do not matter.
inline bool same_strides(torch::IntArrayRef sizes, torch::IntArrayRef a, torch::IntArrayRef b) {
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] > 1 && a[dim] != b[dim]) return false;
  }
  return true;
}

// Whether equal bytes in both mean equal elements: compares dtype, sizes, lazy conjugation and negation, and
// strides.
inline bool same_layout(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (a.is_conj() != b.is_conj() || a.is_neg() != b.is_neg()) return false;
  return same_strides(a.sizes(), a.strides(), b.strides());
}

inline bool same_memory(const torch::Tensor& a, const torch::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && same_layout(a, b);
}

}  // namespace lockstep::nn_detail
