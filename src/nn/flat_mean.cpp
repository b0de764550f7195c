#include "flat_mean.h"

#include <map>

#include "lockstep/c10d/collectives.h"

namespace lockstep::nn_detail {

void flat_mean(const std::vector<torch::Tensor>& tensors, const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  std::map<c10::ScalarType, std::vector<torch::Tensor>> by_dtype;
  for (const torch::Tensor& tensor : tensors) by_dtype[tensor.scalar_type()].push_back(tensor.detach());
  for (auto& [dtype, same] : by_dtype) {
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& tensor : same) flat.push_back(tensor.flatten());
    const torch::Tensor all = torch::cat(flat);
    all_reduce(all, {.op = c10d::ReduceOp::AVG, .group = group});
    std::int64_t offset = 0;
    for (torch::Tensor& tensor : same) {
      tensor.copy_(all.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

}  // namespace lockstep::nn_detail
