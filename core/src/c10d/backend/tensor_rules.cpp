#include "c10d/backend/tensor_rules.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep {

comm::DataType data_type(at::ScalarType type) {
  switch (type) {
    case at::kByte: return comm::DataType::kUInt8;
    case at::kChar: return comm::DataType::kInt8;
    case at::kShort: return comm::DataType::kInt16;
    case at::kInt: return comm::DataType::kInt32;
    case at::kLong: return comm::DataType::kInt64;
    case at::kUInt16: return comm::DataType::kUInt16;
    case at::kUInt32: return comm::DataType::kUInt32;
    case at::kUInt64: return comm::DataType::kUInt64;
    case at::kHalf: return comm::DataType::kFloat16;
    case at::kBFloat16: return comm::DataType::kBFloat16;
    case at::kFloat: return comm::DataType::kFloat32;
    case at::kDouble: return comm::DataType::kFloat64;
    case at::kComplexHalf: return comm::DataType::kComplex32;
    case at::kComplexFloat: return comm::DataType::kComplex64;
    case at::kComplexDouble: return comm::DataType::kComplex128;
    case at::kBool: return comm::DataType::kBool;
    default: return comm::DataType::kByte;
  }
}

// In order of stride, each dimension must step over everything that the dimensions before it reach.
bool may_overlap_itself(const at::Tensor& tensor) {
  if (tensor.numel() <= 1 || tensor.is_non_overlapping_and_dense()) return false;
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // (stride, size)
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

}  // namespace lockstep
