#include "lockstep/nn/sync_batch_norm.h"

#include <torch/nn/functional/batchnorm.h>

#include "nn/all_ranks.h"
#include "nn/batch_norm/synchronised_batch_norm.h"
#include "nn/owed_meeting.h"

namespace lockstep {

void SyncBatchNormImpl::_check_input_dim(const torch::Tensor& input) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "SyncBatchNorm: expected an input (N, C, +), got one of ", input.dim(),
                    " dimensions");
  TORCH_CHECK_VALUE(input.size(1) > 0, "SyncBatchNorm: expected at least one channel, got input size ", input.sizes());
  TORCH_CHECK_VALUE(input.size(1) == options.num_features(), "SyncBatchNorm: expected ", options.num_features(),
                    " channels, got input size ", input.sizes());
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  _check_input_dim(input);
  double momentum = options.momentum().value_or(0.0);
  const bool synchronises = is_training() && nn_detail::has_other_ranks(options.process_group());
  if (synchronises) nn_detail::hold_owed_meeting();
  if (is_training() && options.track_running_stats()) {
    num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  if (synchronises) {
    static const TextNumber kLabel = number_of_label("SyncBatchNorm");
    return nn_detail::synchronised_batch_norm(
        {input, weight, bias, running_mean, running_var, momentum, options.eps()}, options.process_group(),
        c10::str("SyncBatchNorm of ", options.num_features(), " channels"), {options.site, kLabel});
  }
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !options.track_running_stats(), momentum,
                                                   options.eps());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ')';
}

}  // namespace lockstep
