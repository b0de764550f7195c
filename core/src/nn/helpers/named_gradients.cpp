#include "nn/helpers/named_gradients.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>

#include "lockstep/base/shown_model.h"

namespace lockstep::nn_detail {

std::vector<NamedParameter> distinct_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : with_present_tensors(module).named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) result.push_back({item.key(), item.value()});
  }
  return result;
}

std::vector<torch::Tensor> without_names(const std::vector<NamedParameter>& named) {
  std::vector<torch::Tensor> tensors;
  tensors.reserve(named.size());
  for (const NamedParameter& one : named) tensors.push_back(one.tensor);
  return tensors;
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

void scale_to_norm(const std::vector<NamedParameter>& gradients, const torch::Tensor& norm, double max_norm) {
  if (gradients.empty()) return;
  // The factor stays a tensor. So no device waits for its value, and results have the bits of PyTorch's.
  const torch::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const NamedParameter& gradient : gradients) {
    torch::Tensor tensor = gradient.tensor;
    tensor.mul_(factor.to(tensor.device()));
  }
}

torch::Tensor sum_of(const std::vector<torch::Tensor>& values) {
  torch::Tensor total;
  for (const torch::Tensor& tensor : values) {
    if (!tensor.is_floating_point() && !tensor.is_complex()) continue;
    const torch::Tensor numbers = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
    const torch::Tensor sum = numbers.sum(numbers.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
    total = total.defined() ? total + sum.to(total.device()) : sum;
  }
  return total;
}

bool have_finite_sum(const std::vector<torch::Tensor>& values) {
  const torch::Tensor total = sum_of(values);
  return !total.defined() || std::isfinite(total.item<double>());
}

std::string names_of_nonfinite(const std::vector<NamedParameter>& values) {
  constexpr int kShown = 3;
  std::string names;
  int count = 0;
  for (const NamedParameter& value : values) {
    if (value.tensor.isfinite().all().item<bool>()) continue;
    if (++count <= kShown) names += fmt::format("{}'{}'", count == 1 ? "" : ", ", value.name);
  }
  if (count > kShown) names += fmt::format(" and {} other{}", count - kShown, count == kShown + 1 ? "" : "s");
  return names;
}

}  // namespace lockstep::nn_detail
