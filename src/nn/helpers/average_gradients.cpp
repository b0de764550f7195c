#include "lockstep/nn/average_gradients.h"

#include <unordered_set>

#include "lockstep/c10d/collectives.h"
#include "nn/flat_mean.h"

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
  mine.reserve(trained.size());
  for (const torch::Tensor& parameter : trained) mine.push_back(parameter.grad().defined() ? 1 : 0);
  const torch::Tensor used = torch::tensor(mine, torch::kInt64).to(trained.front().device());
  all_reduce(used, {.op = c10d::ReduceOp::MAX, .group = group});
  const torch::Tensor anywhere = used.cpu();

  std::vector<torch::Tensor> gradients;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (anywhere.const_data_ptr<std::int64_t>()[i] == 0) continue;
    torch::Tensor& gradient = trained[i].mutable_grad();
    if (!gradient.defined()) gradient = torch::zeros_like(trained[i]);
    gradients.push_back(gradient);
  }
  nn_detail::flat_mean(gradients, group);
}

void average_gradients(const torch::nn::Module& module, const ProcessGroup& group) {
  average_gradients(module.parameters(), group);
}

}  // namespace lockstep
