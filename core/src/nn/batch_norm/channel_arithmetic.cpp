#include "channel_arithmetic.h"

#include <torch/torch.h>

#include "channel_moments.h"

namespace lockstep::nn_detail {
namespace {

using torch::Tensor;

// [C] for arithmetic with (N, C, +).
Tensor by_channel(const Tensor& values, const Tensor& input) {
  std::vector<std::int64_t> shape(input.dim(), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

void update_running(const Tensor& running, const Tensor& now, double momentum) {
  if (running.defined()) running.copy_(running.to(torch::kDouble).mul_(1 - momentum).add_(now, momentum));
}

}  // namespace

torch::Dtype dtype_of_statistics(const Tensor& input) {
  return input.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

Tensor as_statistics(const Tensor& tensor, const Tensor& input) {
  return tensor.defined() ? tensor.to(dtype_of_statistics(input)) : tensor;
}

Tensor own_statistics(const Tensor& input) {
  const std::int64_t channels = input.size(1);
  const auto options = input.options().dtype(dtype_of_statistics(input));
  if (input.numel() == 0) return torch::zeros({2 * channels + 2}, options);
  const std::int64_t in_channel = input.numel() / channels;
  const auto count = static_cast<double>(in_channel);
  const double high = static_cast<float>(count);
  if (has_channel_moments(input)) {
    const ChannelMoments found = channel_moments(input);
    return torch::cat({found.mean, found.var, torch::tensor({high, count - high}, options)});
  }
  // LibTorch computes in the dtype of running statistics, where there are any: not in half or bfloat16.
  Tensor unread_mean, unread_var;
  if (input.scalar_type() != dtype_of_statistics(input)) {
    unread_mean = torch::zeros({channels}, options);
    unread_var = torch::zeros_like(unread_mean);
  }
  const auto [mean, var] = at::batch_norm_update_stats(input, unread_mean, unread_var, 0.0);
  // Not torch::tensor, which makes its values on the CPU: the program would wait for the device to take them.
  return torch::cat({mean, var, torch::full({1}, high, options), torch::full({1}, count - high, options)});
}

double count_over_ranks(const Tensor& all) {
  if (all.is_cpu()) return by_loops::count_over_ranks(all);
  return all.narrow(1, all.size(1) - 2, 2).to(torch::kDouble).sum().item<double>();
}

BatchStatistics combine_statistics(const Tensor& all, std::optional<double> known, const BatchNormCall& call) {
  if (known && by_loops::suit(call)) return by_loops::combine_statistics(all, *known, call);
  const std::int64_t channels = call.input.size(1);
  const Tensor doubles = all.to(torch::kDouble);
  const Tensor counts = doubles.narrow(1, 2 * channels, 2).sum(1, /*keepdim=*/true);
  const Tensor count = counts.sum();
  const Tensor parts = counts / count;
  const Tensor means = doubles.narrow(1, 0, channels);
  const Tensor mean = (means * parts).sum(0);
  const Tensor var = (means - mean).square_().add_(doubles.narrow(1, channels, channels)).mul_(parts).sum(0);
  update_running(call.running_mean, mean, call.momentum);
  update_running(call.running_var, var * (count / (count - 1)), call.momentum);
  return {as_statistics(mean, call.input), as_statistics(var, call.input), known.value_or(0), count};
}

Tensor normalise(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& var,
                 double eps) {
  return std::get<0>(at::native_batch_norm(x, weight, bias, mean, var, /*training=*/false, /*momentum=*/0.0, eps));
}

Tensor own_sums(const Tensor& grad_output, const Tensor& input, const Tensor& weight, const BatchStatistics& statistics,
                double eps) {
  if (input.numel() == 0) return torch::zeros({2 * input.size(1)}, statistics.mean.options());
  // In evaluation mode the gradients of weight and bias are exactly these sums, from one pass over both tensors. They
  // do not depend on the values of the weight.
  const Tensor any = weight.defined() ? as_statistics(weight, input) : torch::ones_like(statistics.mean);
  const auto [unused, p, s] = at::native_batch_norm_backward(grad_output, input, any, statistics.mean, statistics.var,
                                                             {}, {}, /*train=*/false, eps, {false, true, true});
  return torch::cat({p, s});
}

Tensor input_gradient(const Tensor& grad_output, const Tensor& input, const Tensor& weight, const Tensor& sums,
                      const BatchStatistics& statistics, double eps) {
  if (by_loops::suit(grad_output, input, weight))
    return by_loops::input_gradient(grad_output, input, weight, sums, statistics, eps);
  const std::int64_t channels = input.size(1);
  const Tensor scale = (statistics.var.to(torch::kDouble) + eps).rsqrt_();
  const Tensor of_grad = weight.defined() ? scale * weight.to(torch::kDouble) : scale;
  const Tensor& there = statistics.count_there;
  const auto by_count = [&](Tensor sum) { return there.defined() ? sum.div_(-there) : sum.div_(-statistics.count); };
  const Tensor of_input = by_count(of_grad * scale * sums.narrow(0, 0, channels));
  const Tensor constant = by_count(of_grad * sums.narrow(0, channels, channels));
  // dx = of_grad dy + of_input (x - mean) + constant. Half and bfloat16 are rounded once, at the end.
  const Tensor x = as_statistics(input, input);
  const Tensor result = normalise(x, as_statistics(of_input, input), as_statistics(constant, input), statistics.mean,
                                  torch::ones_like(statistics.mean), /*eps=*/0);
  result.addcmul_(as_statistics(grad_output, input), by_channel(as_statistics(of_grad, input), input));
  return result.to(input.scalar_type());
}

}  // namespace lockstep::nn_detail
