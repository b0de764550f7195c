// How tensors of LibTorch become memory for the engine.
#pragma once

#include <ATen/ATen.h>

#include "lockstep/reduce/types.h"

namespace lockstep {

// The engine's name for a dtype; kByte (moved, never reduced) for those without arithmetic in the engine.
comm::DataType data_type(at::ScalarType type);

// Whether data_ptr points to the elements, in row-major order in host memory: the engine can then use them in place.
inline bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() && !tensor._is_zerotensor();
}

// Whether two elements may share memory (as after expand). False for views made by slicing, transposing and permuting.
bool may_overlap_itself(const at::Tensor& tensor);

// Row-major host memory of the same sizes and dtype: shared with the other ranks, or pinned for tensors of another
// device.
at::Tensor make_temporary(const at::Tensor& tensor);

inline std::size_t byte_size(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
}

}  // namespace lockstep
