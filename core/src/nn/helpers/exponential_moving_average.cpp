#include "lockstep/nn/exponential_moving_average.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/log.h"
#include "lockstep/base/shown_model.h"
#include "nn/helpers/named_gradients.h"

namespace lockstep {
namespace {

bool is_averaged(const torch::Tensor& value) {
  return value.is_floating_point() || value.is_complex();
}

torch::Dtype dtype_of_average(const torch::Tensor& value) {
  const torch::Dtype dtype = value.scalar_type();
  return dtype == torch::kHalf || dtype == torch::kBFloat16 ? torch::kFloat : dtype;
}

}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(const torch::nn::Module& module,
                                                   const ExponentialMovingAverageOptions& options)
    : module_(module), options_(options) {
  TORCH_CHECK_VALUE(options_.decay >= 0 && options_.decay <= 1,
                    "ExponentialMovingAverage: decay must be in 0 to 1, got ", options_.decay);
  values_ = values_now();
  for (const NamedParameter& value : values_) {
    averages_.push_back({value.name, value.tensor.detach().to(dtype_of_average(value.tensor)).clone()});
  }
}

std::vector<NamedParameter> ExponentialMovingAverage::values_now() const {
  std::vector<NamedParameter> result = nn_detail::distinct_parameters(module_);
  if (!options_.use_buffers) return result;
  for (const auto& item : module_.named_buffers()) {
    if (item.value().defined()) result.push_back({item.key(), item.value()});
  }
  return result;
}

bool ExponentialMovingAverage::same_tensors() const {
  std::vector<torch::Tensor> now = with_present_tensors(module_).parameters();
  if (options_.use_buffers) {
    for (const torch::Tensor& buffer : module_.buffers()) now.push_back(buffer);
  }
  std::size_t next = 0;
  for (const torch::Tensor& tensor : now) {
    if (!tensor.defined()) continue;
    if (next < values_.size() && tensor.is_same(values_[next].tensor)) {
      ++next;
      continue;
    }
    // Layers that share a parameter have it twice.
    const bool known = std::any_of(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(next),
                                   [&](const NamedParameter& value) { return tensor.is_same(value.tensor); });
    if (!known) return false;
  }
  return next == values_.size();
}

void ExponentialMovingAverage::find_values() {
  if (!same_tensors()) values_ = values_now();
  TORCH_CHECK_VALUE(values_.size() == averages_.size(), "ExponentialMovingAverage: the module has ", values_.size(),
                    " parameters and buffers now, and had ", averages_.size(), " at first; make a new average");
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const torch::Tensor& average = averages_[i].tensor;
    const torch::Tensor& value = values_[i].tensor;
    TORCH_CHECK_VALUE(values_[i].name == averages_[i].name && value.sizes() == average.sizes(),
                      "ExponentialMovingAverage: the module has '", values_[i].name, "' ", value.sizes(),
                      " now, expected '", averages_[i].name, "' ", average.sizes(), "; make a new average");
  }
}

void ExponentialMovingAverage::update() {
  TORCH_CHECK(own_.empty(), "ExponentialMovingAverage: update() while the averages are swapped in");
  const torch::NoGradGuard no_grad;
  find_values();
  for (std::size_t i = 0; i < values_.size(); ++i) {
    torch::Tensor& average = averages_[i].tensor;
    const torch::Tensor& value = values_[i].tensor;
    if (updates_ == 0 || !is_averaged(value)) {
      average.copy_(value);
    } else {
      average.lerp_(value.to(average.options()), 1 - options_.decay);
    }
  }
  ++updates_;
}

void ExponentialMovingAverage::swap() {
  TORCH_CHECK(own_.empty(), "ExponentialMovingAverage: the averages are swapped in already");
  const torch::NoGradGuard no_grad;
  find_values();
  std::vector<torch::Tensor> own;
  own.reserve(values_.size());
  for (const NamedParameter& value : values_) own.push_back(value.tensor.detach().clone());
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i].tensor.copy_(averages_[i].tensor);
  own_ = std::move(own);
}

void ExponentialMovingAverage::swap_back() noexcept {
  try {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i].tensor.copy_(own_.at(i));
  } catch (const std::exception& error) {
    log::error(
        fmt::format("ExponentialMovingAverage: the module's own values could not be put back: {}", error.what()));
  }
  own_.clear();
}

std::map<std::string, torch::Tensor> ExponentialMovingAverage::tensors() const {
  std::map<std::string, torch::Tensor> result;
  for (const NamedParameter& average : averages_) result[average.name] = average.tensor;
  return result;
}

void ExponentialMovingAverage::load(const std::map<std::string, torch::Tensor>& tensors, std::int64_t updates) {
  std::string problems;
  for (const NamedParameter& average : averages_) {
    const auto found = tensors.find(average.name);
    if (found == tensors.end()) {
      problems += fmt::format(" '{}' is missing;", average.name);
    } else if (found->second.sizes() != average.tensor.sizes()) {
      problems += fmt::format(" '{}' is {}, expected {};", average.name, c10::str(found->second.sizes()),
                              c10::str(average.tensor.sizes()));
    }
  }
  for (const auto& entry : tensors) {
    const bool known =
        std::any_of(averages_.begin(), averages_.end(), [&](const auto& one) { return one.name == entry.first; });
    if (!known) problems += fmt::format(" '{}' is not in the module;", entry.first);
  }
  TORCH_CHECK_VALUE(problems.empty(), "ExponentialMovingAverage: the saved averages do not fit:", problems);
  TORCH_CHECK(own_.empty(), "ExponentialMovingAverage: load() while the averages are swapped in");
  const torch::NoGradGuard no_grad;
  for (NamedParameter& average : averages_) average.tensor.copy_(tensors.at(average.name));
  updates_ = updates;
}

}  // namespace lockstep
