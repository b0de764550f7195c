#include "named_gradients.h"

#include <fmt/format.h>

#include <unordered_set>

namespace lockstep::nn_detail {

std::vector<NamedParameter> distinct_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) result.push_back({item.key(), item.value()});
  }
  return result;
}

std::vector<NamedParameter> gradient_values(const std::vector<NamedParameter>& parameters) {
  std::vector<NamedParameter> result;
  for (const NamedParameter& parameter : parameters) {
    torch::Tensor& gradient = const_cast<torch::Tensor&>(parameter.tensor).mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse() && !gradient.is_coalesced()) gradient = gradient.coalesce();
    result.push_back({parameter.name, (gradient.is_sparse() ? gradient._values() : gradient).detach()});
  }
  return result;
}

torch::Tensor total_norm(const std::vector<NamedParameter>& gradients, double norm_type) {
  std::vector<torch::Tensor> norms;
  for (const NamedParameter& gradient : gradients) {
    norms.push_back(at::linalg_vector_norm(gradient.tensor, norm_type));
    if (norms.back().device() != norms.front().device()) norms.back() = norms.back().to(norms.front().device());
  }
  return norms.empty() ? torch::Tensor() : at::linalg_vector_norm(torch::stack(norms), norm_type);
}

std::string names_of_nonfinite(const std::vector<NamedParameter>& gradients) {
  constexpr int kShown = 3;
  std::string names;
  int count = 0;
  for (const NamedParameter& gradient : gradients) {
    if (gradient.tensor.isfinite().all().item<bool>()) continue;
    if (++count <= kShown) names += fmt::format("{}'{}'", count == 1 ? "" : ", ", gradient.name);
  }
  if (count > kShown) names += fmt::format(" and {} others", count - kShown);
  return names;
}

}  // namespace lockstep::nn_detail
