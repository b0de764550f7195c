#include "lockstep/nn/clip_grad.h"

#include <cmath>
#include <unordered_set>

#include "nn/helpers/named_gradients.h"
#include "nn/shared_step/rank_gradients.h"

namespace lockstep {

double clip_grad_norm_(const std::vector<NamedParameter>& parameters, double max_norm, const ClipGradOptions& options) {
  TORCH_CHECK_VALUE(max_norm >= 0, "clip_grad_norm_: max_norm must not be negative, got ", max_norm);
  std::unordered_set<const void*> seen;
  for (const NamedParameter& parameter : parameters) {
    const bool is_repeated = parameter.tensor.defined() && !seen.insert(parameter.tensor.unsafeGetTensorImpl()).second;
    TORCH_CHECK_VALUE(!is_repeated, "clip_grad_norm_: parameter '", parameter.name,
                      "' is there twice, so its gradient would count twice and be scaled twice; name each parameter "
                      "once, or pass the module");
    TORCH_CHECK_VALUE(!nn_detail::keeps_own_gradient(parameter.tensor), "clip_grad_norm_: the gradient of parameter '",
                      parameter.name,
                      "' is no mean yet, because a SharedStep with average_gradients takes the mean in its step(); set "
                      "SharedStepOptions::max_norm, which clips the mean, and leave this call out");
  }
  const torch::NoGradGuard no_grad;
  const std::vector<NamedParameter> gradients = nn_detail::gradient_values(parameters);
  const torch::Tensor norm = nn_detail::total_norm(gradients, options.norm_type);
  if (!norm.defined()) return 0;
  const auto value = norm.item<double>();
  if (options.error_if_nonfinite && !std::isfinite(value)) {
    const std::string names = nn_detail::names_of_nonfinite(gradients);
    TORCH_CHECK(false, "clip_grad_norm_: the norm of the gradients is ", value, "; ",
                names.empty() ? "all gradients are finite, but their norm is too large for their dtype"
                              : "not finite: the gradient of " + names);
  }
  nn_detail::scale_to_norm(gradients, norm, max_norm);
  return value;
}

double clip_grad_norm_(const torch::nn::Module& module, double max_norm, const ClipGradOptions& options) {
  return clip_grad_norm_(nn_detail::distinct_parameters(module), max_norm, options);
}

}  // namespace lockstep
