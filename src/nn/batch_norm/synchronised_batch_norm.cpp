#include "synchronised_batch_norm.h"

#include <torch/torch.h>

#include <optional>

#include "nn/backend.h"

// The formulas. Rank r has n_r values per channel with mean m_r and variance v_r:
//   n = sum n_r,  mean = sum n_r / n m_r,  var = sum n_r / n (v_r + (m_r - mean)^2)
//   y = (x - mean) s w + b  with s = 1 / sqrt(var + eps)
// and backward, with sums over all ranks S = sum dy and P = sum dy (x - mean) s:
//   dx = s w (dy - S / n - (x - mean) s P / n),  dw = this rank's part of P,  db = this rank's part of S
// DistributedDataParallel makes dw and db the mean over ranks, like all other gradients of parameters.
namespace lockstep::nn_detail {
namespace {

using torch::Tensor;

// What a pass keeps for its backward pass, besides tensors that autograd guards.
struct Pass : torch::CustomClassHolder {
  ProcessGroup group;
  std::string layer;
  Tensor mean;  // [C], as var; of the dtype of statistics
  Tensor var;
  double count = 0;  // values per channel, over all ranks
  double eps = 0;
  bool input_requires_grad = false;
  // Empty where weight or bias is missing or requires no gradient.
  std::optional<torch::Dtype> weight_dtype;
  std::optional<torch::Dtype> bias_dtype;
};

torch::Dtype dtype_of_statistics(const Tensor& input) {
  return input.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

Tensor as_statistics(const Tensor& tensor, const Tensor& input) {
  return tensor.defined() ? tensor.to(dtype_of_statistics(input)) : tensor;
}

// The error of a collective, with the layer in front.
template <typename Call>
auto in_layer(const std::string& layer, Call call) {
  try {
    return call();
  } catch (const BackendError& error) {
    throw BackendError(error.code(), c10::str(layer, ": ", error.what_without_backtrace()));
  }
}

// [2C + 1]: mean, variance, number of values per channel. Doubles, so that counts are exact.
Tensor own_statistics(const Tensor& input) {
  const std::int64_t channels = input.size(1);
  const auto doubles = input.options().dtype(torch::kDouble);
  if (input.numel() == 0) return torch::zeros({2 * channels + 1}, doubles);
  // LibTorch computes in the dtype of running statistics, where there are any: not in half or bfloat16.
  Tensor unread_mean, unread_var;
  if (input.scalar_type() != dtype_of_statistics(input)) {
    unread_mean = torch::zeros({channels}, input.options().dtype(dtype_of_statistics(input)));
    unread_var = torch::zeros_like(unread_mean);
  }
  const auto [mean, var] = at::batch_norm_update_stats(input, unread_mean, unread_var, 0.0);
  return torch::cat({mean, var, torch::full({1}, static_cast<double>(input.numel() / channels), doubles)});
}

void update_running(const Tensor& running, const Tensor& now, double momentum) {
  if (running.defined()) running.copy_(running.to(torch::kDouble).mul_(1 - momentum).add_(now, momentum));
}

// Fills mean, var and count of the pass. Collective.
void combine_statistics(const BatchNormCall& call, Pass& pass) {
  const Tensor& input = call.input;
  const std::int64_t channels = input.size(1);
  const Tensor mine = own_statistics(input);
  const Tensor all = in_layer(pass.layer, [&] { return Backend(pass.group, input.device()).all_gather(mine); });
  const Tensor counts = all.narrow(1, 2 * channels, 1);
  pass.count = counts.sum().item<double>();
  if (pass.count == 0) return;
  TORCH_CHECK_VALUE(pass.count > 1, pass.layer,
                    ": expected more than 1 value per channel when training, over all ranks together; this rank has "
                    "input size ",
                    input.sizes());
  const Tensor parts = counts / pass.count;
  const Tensor means = all.narrow(1, 0, channels);
  const Tensor mean = (means * parts).sum(0);
  const Tensor var = (means - mean).square_().add_(all.narrow(1, channels, channels)).mul_(parts).sum(0);
  pass.mean = as_statistics(mean, input);
  pass.var = as_statistics(var, input);
  update_running(call.running_mean, mean, call.momentum);
  update_running(call.running_var, var * (pass.count / (pass.count - 1)), call.momentum);
}

// (x - mean) / sqrt(var + eps) * weight + bias, by channel.
Tensor normalise(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& var,
                 double eps) {
  return std::get<0>(at::native_batch_norm(x, weight, bias, mean, var, /*training=*/false, /*momentum=*/0.0, eps));
}

// [C] for arithmetic with (N, C, +).
Tensor by_channel(const Tensor& values, const Tensor& input) {
  std::vector<std::int64_t> shape(input.dim(), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

// `sums`: [2C], P and S over all ranks.
Tensor input_gradient(const Tensor& grad_output, const Tensor& input, const Tensor& weight, const Tensor& sums,
                      const Pass& pass) {
  const std::int64_t channels = input.size(1);
  const Tensor scale = (pass.var.to(torch::kDouble) + pass.eps).rsqrt_();
  const Tensor of_grad = weight.defined() ? scale * weight.to(torch::kDouble) : scale;
  const Tensor of_input = (of_grad * scale * sums.narrow(0, 0, channels)).div_(-pass.count);
  const Tensor constant =
      (of_grad * sums.narrow(0, channels, channels)).div_(-pass.count) - of_input * pass.mean.to(torch::kDouble);
  // dx = of_grad dy + of_input x + constant. Half and bfloat16 are rounded once, at the end.
  const Tensor x = as_statistics(input, input);
  const Tensor zeros = torch::zeros_like(pass.mean);
  const Tensor result = normalise(x, as_statistics(of_input, input), as_statistics(constant, input), zeros,
                                  torch::ones_like(zeros), /*eps=*/0);
  result.addcmul_(as_statistics(grad_output, input), by_channel(as_statistics(of_grad, input), input));
  return result.to(input.scalar_type());
}

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  // weight and bias are optional, because autograd asks every tensor argument for its device, undefined ones too.
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const std::optional<Tensor>& given_weight, const std::optional<Tensor>& given_bias,
                        const c10::intrusive_ptr<Pass>& pass) {
    const Tensor weight = given_weight.value_or(Tensor());
    const Tensor bias = given_bias.value_or(Tensor());
    context->save_for_backward({input, weight});
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    if (input.numel() == 0) return torch::empty_like(input);
    return normalise(input, as_statistics(weight, input), as_statistics(bias, input), pass->mean, pass->var, pass->eps);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto pass = c10::static_intrusive_pointer_cast<Pass>(context->saved_data["pass"].toCapsule());
    TORCH_CHECK_NOT_IMPLEMENTED(!torch::GradMode::is_enabled(), pass->layer,
                                ": second derivatives are not implemented; call backward() without create_graph");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Tensor& input = saved[0];
    const Tensor& weight = saved[1];
    const Tensor grad_output = grads[0].contiguous(input.suggest_memory_format());
    const Tensor sums = own_sums(grad_output, input, *pass);
    const std::int64_t channels = input.size(1);
    torch::autograd::variable_list result(4);
    // Before they are summed over ranks, P and S are this rank's gradients of weight and bias.
    if (pass->weight_dtype) result[1] = copy_of(sums.narrow(0, 0, channels), *pass->weight_dtype);
    if (pass->bias_dtype) result[2] = copy_of(sums.narrow(0, channels, channels), *pass->bias_dtype);
    if (!pass->input_requires_grad) return result;
    in_layer(pass->layer, [&] { Backend(pass->group, input.device()).start_sum(sums)->wait(); });
    result[0] = input.numel() == 0 ? torch::zeros_like(input) : input_gradient(grad_output, input, weight, sums, *pass);
    return result;
  }

 private:
  // Returns a copy, because the caller overwrites `sums` with the sums over ranks.
  static Tensor copy_of(const Tensor& sums, torch::Dtype dtype) { return sums.to(dtype, false, /*copy=*/true); }

  // [2C], double: this rank's P and S.
  static Tensor own_sums(const Tensor& grad_output, const Tensor& input, const Pass& pass) {
    const std::int64_t channels = input.size(1);
    if (input.numel() == 0) return torch::zeros({2 * channels}, input.options().dtype(torch::kDouble));
    // In evaluation mode the gradients of bias and weight are exactly these sums, from one pass over both tensors.
    const Tensor ones = torch::ones_like(pass.mean);
    const auto [unused, p, s] = at::native_batch_norm_backward(grad_output, input, ones, pass.mean, pass.var, {}, {},
                                                               /*train=*/false, pass.eps, {false, true, true});
    return torch::cat({p, s}).to(torch::kDouble);
  }
};

}  // namespace

torch::Tensor synchronised_batch_norm(const BatchNormCall& call, const ProcessGroup& group, const std::string& layer) {
  BatchNormCall plain = call;
  plain.input = call.input.contiguous(call.input.suggest_memory_format());
  auto pass = c10::make_intrusive<Pass>();
  pass->group = group;
  pass->layer = c10::str("rank ", get_rank(group), ", ", layer);
  pass->eps = call.eps;
  pass->input_requires_grad = call.input.requires_grad();
  if (call.weight.defined() && call.weight.requires_grad()) pass->weight_dtype = call.weight.scalar_type();
  if (call.bias.defined() && call.bias.requires_grad()) pass->bias_dtype = call.bias.scalar_type();
  {
    const torch::NoGradGuard no_grad;
    combine_statistics(plain, *pass);
  }
  if (pass->count == 0) {  // no rank has a value: do what a plain layer does
    return at::native::batch_norm(call.input, call.weight, call.bias, call.running_mean, call.running_var,
                                  /*training=*/true, call.momentum, call.eps, /*cudnn_enabled=*/false);
  }
  const auto optional = [](const Tensor& tensor) {
    return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(plain.input, optional(call.weight), optional(call.bias), pass);
}

}  // namespace lockstep::nn_detail
