#include "lockstep/nn/average_gradients.h"

#include <map>
#include <unordered_set>

#include "lockstep/c10d/collectives.h"

namespace lockstep {

void average_gradients(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> trained;
  std::unordered_set<const void*> seen;
  for (const torch::Tensor& parameter : parameters) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) trained.push_back(parameter);
  }
  if (trained.empty()) return;
  std::vector<std::int64_t> mine;
  for (const torch::Tensor& parameter : trained) mine.push_back(parameter.grad().defined() ? 1 : 0);
  const torch::Tensor used = torch::tensor(mine, torch::kInt64).to(trained.front().device());
  all_reduce(used, {.op = c10d::ReduceOp::MAX, .group = group});
  const torch::Tensor anywhere = used.cpu();

  std::map<c10::ScalarType, std::vector<torch::Tensor>> gradients;  // one message for each dtype
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (anywhere.const_data_ptr<std::int64_t>()[i] == 0) continue;
    torch::Tensor& gradient = trained[i].mutable_grad();
    if (!gradient.defined()) gradient = torch::zeros_like(trained[i]);
    gradients[gradient.scalar_type()].push_back(gradient);
  }
  for (auto& [dtype, tensors] : gradients) {
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& gradient : tensors) flat.push_back(gradient.flatten());
    const torch::Tensor all = torch::cat(flat);
    all_reduce(all, {.op = c10d::ReduceOp::AVG, .group = group});
    std::int64_t offset = 0;
    for (torch::Tensor& gradient : tensors) {
      gradient.copy_(all.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
      offset += gradient.numel();
    }
  }
}

void average_gradients(const torch::nn::Module& module, const ProcessGroup& group) {
  average_gradients(module.parameters(), group);
}

}  // namespace lockstep
