#include "fast_batch_norm.h"

#include <torch/torch.h>

#include <atomic>

#include "channel_arithmetic.h"
#include "channel_moments.h"
#include "lockstep/nn/fast_batch_norm.h"
#include "nn/batch_norm/intercepted_batch_norm.h"
#include "nn/usual_tensor.h"

namespace lockstep {
namespace {

std::atomic<bool> is_on{false};

}  // namespace

void use_fast_batch_norm() {
  is_on = true;
  nn_detail::intercept_batch_norm();
}

bool nn_detail::is_fast_everywhere() {
  return is_on.load(std::memory_order_relaxed);
}

namespace nn_detail {
namespace {

using torch::Tensor;

// One float for each channel, or nothing.
bool is_usual_vector(const Tensor& tensor, std::int64_t channels) {
  return !tensor.defined() || (is_usual(tensor) && tensor.layout() == torch::kStrided && tensor.dim() == 1 &&
                               tensor.size(0) == channels && tensor.scalar_type() == torch::kFloat);
}

class FastBatchNorm : public torch::autograd::Function<FastBatchNorm> {
 public:
  // weight and bias are optional, because autograd asks every tensor argument for its device, undefined ones too.
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                        const BatchStatistics& statistics, double eps) {
    const auto wanted = [](const std::optional<Tensor>& tensor) { return tensor && tensor->requires_grad(); };
    context->saved_data["wanted"] = c10::List<bool>({input.requires_grad(), wanted(weight), wanted(bias)});
    context->saved_data["eps"] = eps;
    context->save_for_backward({input, weight.value_or(Tensor()), statistics.mean, (statistics.var + eps).rsqrt_()});
    return normalise(input, weight.value_or(Tensor()), bias.value_or(Tensor()), statistics.mean, statistics.var, eps);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const c10::List<bool> wanted = context->saved_data["wanted"].toBoolList();
    auto [input, weight, bias] =
        at::native_batch_norm_backward(grads[0], saved[0], saved[1], {}, {}, saved[2], saved[3], /*train=*/true,
                                       context->saved_data["eps"].toDouble(), {wanted[0], wanted[1], wanted[2]});
    const auto or_none = [&](Tensor& gradient, std::size_t i) { return wanted[i] ? std::move(gradient) : Tensor(); };
    return {or_none(input, 0), or_none(weight, 1), or_none(bias, 2), Tensor(), Tensor()};
  }
};

}  // namespace

bool suits_fast_batch_norm(const BatchNormCall& call) {
  const Tensor& input = call.input;
  if (!is_usual(input) || !has_channel_moments(input) || !is_usual_call()) return false;
  const std::int64_t channels = input.size(1);
  return input.numel() > channels && is_usual_vector(call.weight, channels) && is_usual_vector(call.bias, channels) &&
         is_usual_vector(call.running_mean, channels) && is_usual_vector(call.running_var, channels);
}

torch::Tensor fast_batch_norm(const BatchNormCall& call) {
  BatchStatistics statistics;
  {
    const torch::NoGradGuard no_grad;
    const double count = static_cast<double>(call.input.numel() / call.input.size(1));
    statistics = combine_statistics(own_statistics(call.input).unsqueeze(0), count, call);
  }
  const auto optional = [](const Tensor& tensor) {
    return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
  };
  return FastBatchNorm::apply(call.input, optional(call.weight), optional(call.bias), statistics, call.eps);
}

}  // namespace nn_detail
}  // namespace lockstep
