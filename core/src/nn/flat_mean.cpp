#include "flat_mean.h"

#include <algorithm>

#include "lockstep/c10d/collectives.h"

namespace lockstep::nn_detail {

void flat_mean(const std::vector<torch::Tensor>& tensors, const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  std::vector<std::vector<torch::Tensor>> alike;  // in the order of the first of each, which is that of all ranks
  for (const torch::Tensor& tensor : tensors) {
    const auto same = std::find_if(alike.begin(), alike.end(), [&](const auto& others) {
      return others[0].scalar_type() == tensor.scalar_type() && others[0].device() == tensor.device();
    });
    (same == alike.end() ? alike.emplace_back() : *same).push_back(tensor.detach());
  }
  for (std::vector<torch::Tensor>& same : alike) {
    std::vector<torch::Tensor> flat;
    flat.reserve(same.size());
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
