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
    if (!same_layout(to, from) || to.is_conj() || to.is_neg() || to.device() != from.device()) {
      to.copy_(from);
      return;
    }
    auto& [targets, sources] = by_dtype_[to.scalar_type()];
    targets.push_back(to);
    sources.push_back(from);
  }
  void run() {
    for (const auto& [dtype, both] : by_dtype_) at::_foreach_copy_(both.first, both.second);
    by_dtype_.clear();
  }

 private:
  std::map<torch::Dtype, std::pair<std::vector<torch::Tensor>, std::vector<torch::Tensor>>> by_dtype_;
};

}  // namespace lockstep::nn_detail
