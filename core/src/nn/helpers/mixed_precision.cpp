#include "lockstep/nn/mixed_precision.h"

#include <ATen/autocast_mode.h>

#include "nn/helpers/named_gradients.h"

namespace lockstep {

Autocast::Autocast(torch::DeviceType device, torch::Dtype dtype)
    : device_(device),
      dtype_before_(at::autocast::get_autocast_dtype(device)),
      enabled_before_(at::autocast::is_autocast_enabled(device)) {
  TORCH_CHECK_VALUE(dtype == torch::kBFloat16 || dtype == torch::kHalf,
                    "Autocast: expected torch::kBFloat16 or torch::kHalf, got ", dtype);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  // Parameters are converted once for a scope, and change after it.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device_, dtype_before_);
  at::autocast::set_autocast_enabled(device_, enabled_before_);
}

MasterWeights::MasterWeights(const torch::nn::Module& module) {
  for (const NamedParameter& parameter : nn_detail::distinct_parameters(module)) {
    if (!parameter.tensor.requires_grad()) continue;
    const torch::Dtype dtype = parameter.tensor.scalar_type();
    const bool copied = dtype == torch::kHalf || dtype == torch::kBFloat16;
    parameters_.push_back(parameter);
    masters_.push_back(
        {parameter.name, copied ? parameter.tensor.detach().to(torch::kFloat).requires_grad_() : parameter.tensor});
  }
  TORCH_CHECK_VALUE(!masters_.empty(), "MasterWeights: this module has no parameter that requires a gradient");
}

std::vector<torch::Tensor> MasterWeights::parameters() const {
  return nn_detail::without_names(masters_);
}

void MasterWeights::step(torch::optim::Optimizer& optimizer) {
  copy_gradients();
  optimizer.step();
  copy_parameters();
}

void MasterWeights::copy_gradients() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    torch::Tensor& master = masters_[i].tensor;
    if (master.is_same(parameters_[i].tensor)) continue;
    const torch::Tensor& gradient = parameters_[i].tensor.grad();
    if (!gradient.defined()) {
      master.mutable_grad().reset();
    } else if (master.grad().defined() && !gradient.is_sparse()) {
      master.mutable_grad().copy_(gradient);
    } else {
      master.mutable_grad() = gradient.to(torch::kFloat);
    }
  }
}

void MasterWeights::copy_parameters() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    if (!masters_[i].tensor.is_same(parameters_[i].tensor)) parameters_[i].tensor.copy_(masters_[i].tensor);
  }
}

void MasterWeights::reload() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    if (!masters_[i].tensor.is_same(parameters_[i].tensor)) masters_[i].tensor.copy_(parameters_[i].tensor);
  }
}

std::map<std::string, torch::Tensor> MasterWeights::tensors() const {
  std::map<std::string, torch::Tensor> result;
  for (const NamedParameter& master : masters_) result[master.name] = master.tensor.detach();
  return result;
}

void MasterWeights::load(const std::map<std::string, torch::Tensor>& tensors) {
  for (const NamedParameter& master : masters_) {
    const auto found = tensors.find(master.name);
    TORCH_CHECK_VALUE(found != tensors.end(), "MasterWeights: '", master.name, "' is missing");
    TORCH_CHECK_VALUE(found->second.sizes() == master.tensor.sizes(), "MasterWeights: '", master.name, "' is ",
                      found->second.sizes(), ", expected ", master.tensor.sizes());
  }
  const torch::NoGradGuard no_grad;
  for (NamedParameter& master : masters_) master.tensor.copy_(tensors.at(master.name));
  copy_parameters();
}

}  // namespace lockstep
