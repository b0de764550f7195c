// Copies: many small copies at once. On a GPU they take one kernel or few, where a call for each would keep the program
// busy longer than the device.
#pragma once

#include <torch/types.h>

#include <map>
#include <utility>
#include <vector>

#include "nn/same_memory.h"

namespace lockstep::nn_detail {

class Copies {
 public:
  // Tensors of equal sizes that share no memory. Copied by run(), or at once where the elements lie in another order,
  // are lazily conjugated or negated.
  void add(const torch::Tensor& to, const torch::Tensor& from) {
    if (!same_layout(to, from) || to.is_conj() || to.is_neg() || to.device() != from.device() ||
        !has_kernel(to.scalar_type())) {
      to.copy_(from);
      return;
    }
    // Strides of dimensions of size 1 do not matter here, but all tensors would be copied one by one.
    const bool flat = to.strides() != from.strides() && to.is_non_overlapping_and_dense();
    auto& [targets, sources] = by_dtype_[to.scalar_type()];
    targets.push_back(flat ? to.as_strided({to.numel()}, {1}) : to);
    sources.push_back(flat ? from.as_strided({to.numel()}, {1}) : from);
  }
  void run() {
    for (const auto& [dtype, both] : by_dtype_) at::_foreach_copy_(both.first, both.second);
    by_dtype_.clear();
  }

 private:
  // CUDA's kernel has none for other dtypes.
  static bool has_kernel(torch::Dtype dtype) {
    return c10::isIntegralType(dtype, /*includeBool=*/true)
               ? dtype != torch::kUInt16 && dtype != torch::kUInt32 && dtype != torch::kUInt64
               : dtype == torch::kFloat || dtype == torch::kDouble || dtype == torch::kHalf ||
                     dtype == torch::kBFloat16 || dtype == torch::kComplexFloat || dtype == torch::kComplexDouble;
  }

  std::map<torch::Dtype, std::pair<std::vector<torch::Tensor>, std::vector<torch::Tensor>>> by_dtype_;
};

}  // namespace lockstep::nn_detail
