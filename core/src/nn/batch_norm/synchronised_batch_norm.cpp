#include "nn/batch_norm/synchronised_batch_norm.h"

#include <torch/torch.h>

#include <optional>
#include <utility>

#include "c10d/world/own_group.h"
#include "channel_arithmetic.h"
#include "nn/device_backend.h"
#include "nn/owed_meeting.h"

// The formulas. Rank r has n_r values per channel with mean m_r and variance v_r:
//   n = sum n_r,  mean = sum n_r / n m_r,  var = sum n_r / n (v_r + (m_r - mean)^2)
//   y = (x - mean) s w + b  with s = 1 / sqrt(var + eps)
// and backward, with sums over all ranks S = sum dy and P = sum dy (x - mean) s:
//   dx = s w (dy - S / n - (x - mean) s P / n),  dw = this rank's part of P,  db = this rank's part of S
// DistributedDataParallel makes dw and db the mean over ranks, like all other gradients of parameters.
namespace lockstep::nn_detail {
namespace {

using torch::Tensor;

// What a pass keeps for its backward pass, in addition to tensors that autograd guards.
struct Pass : torch::CustomClassHolder {
  ProcessGroup group;
  std::string layer;
  LayerPlace place;
  int rank = 0;
  BatchStatistics statistics;
  double eps = 0;
  bool input_requires_grad = false;
  // Empty where weight or bias is missing or requires no gradient.
  std::optional<torch::Dtype> weight_dtype;
  std::optional<torch::Dtype> bias_dtype;
};

std::string place_of(const Pass& pass) {
  return c10::str("rank ", pass.rank, ", ", pass.layer);
}

// The error of a collective, with the layer in front.
template <typename Call>
auto in_layer(const Pass& pass, Call call) {
  try {
    return call();
  } catch (const BackendError& error) {
    throw BackendError(error.code(), c10::str(place_of(pass), ": ", error.what_without_backtrace()));
  }
}

// After the exchange, which fails on every rank where ranks have different numbers of channels. LibTorch checks the
// same in its own function, which is not called here, and the loops rely on it.
void check_channels(const BatchNormCall& call, const Pass& pass) {
  for (const auto& [what, tensor] :
       {std::pair("weight", call.weight), std::pair("bias", call.bias), std::pair("running_mean", call.running_mean),
        std::pair("running_var", call.running_var)}) {
    TORCH_CHECK_VALUE(!tensor.defined() || tensor.numel() == call.input.size(1), place_of(pass), ": ", what, " has ",
                      tensor.defined() ? tensor.numel() : 0, " values, but the input, of size ", call.input.sizes(),
                      ", has ", call.input.size(1), " channels");
  }
}

// Fills the statistics of the pass. Collective. False: no rank has a value. On a device the number of values of all
// ranks is read only where this rank's own may not be enough: reading it waits for the device.
bool combine_over_ranks(const BatchNormCall& call, Pass& pass) {
  const Tensor mine = own_statistics(call.input);
  const Tensor all = in_layer(pass, [&] { return DeviceBackend(pass.group, mine.device()).all_gather(mine); });
  check_channels(call, pass);
  std::optional<double> count;
  if (all.is_cpu() || call.input.numel() <= call.input.size(1)) {
    count = count_over_ranks(all);
    if (*count == 0) return false;
    TORCH_CHECK_VALUE(*count > 1, place_of(pass),
                      ": expected more than 1 value per channel when training, over all ranks together; this rank has "
                      "input size ",
                      call.input.sizes());
  }
  pass.statistics = combine_statistics(all, count, call);
  return true;
}

// The sum over ranks, as double. Collective. Every rank adds up little data by itself, which takes one meeting of the
// ranks in place of two.
Tensor sum_over_ranks(const Tensor& own, const Pass& pass) {
  constexpr std::size_t kGatheredBytes = std::size_t{64} << 10;  // of all ranks together
  return in_layer(pass, [&] {
    const DeviceBackend backend(pass.group, own.device());
    if (own.nbytes() * static_cast<std::size_t>(backend.world_size()) <= kGatheredBytes)
      return backend.all_gather(own).sum(0, /*keepdim=*/false, torch::kDouble);
    Tensor sums = own.to(torch::kDouble, /*non_blocking=*/false, /*copy=*/true);
    backend.start_sum(sums)->wait();
    return sums;
  });
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
    const BatchStatistics& found = pass->statistics;
    return normalise(input, as_statistics(weight, input), as_statistics(bias, input), found.mean, found.var, pass->eps);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto pass = c10::static_intrusive_pointer_cast<Pass>(context->saved_data["pass"].toCapsule());
    TORCH_CHECK_NOT_IMPLEMENTED(!torch::GradMode::is_enabled(), place_of(*pass),
                                ": second derivatives are not implemented; call backward() without create_graph");
    const CallScope scope(pass->place.site);
    const CallLabel label(pass->place.label);
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Tensor& input = saved[0];
    const Tensor& weight = saved[1];
    const Tensor grad_output = grads[0].contiguous(input.suggest_memory_format());
    const Tensor own = own_sums(grad_output, input, weight, pass->statistics, pass->eps);
    const std::int64_t channels = input.size(1);
    torch::autograd::variable_list result(4);
    // Before they are summed over ranks, P and S are this rank's gradients of weight and bias. Not as views of one
    // tensor: each would keep the memory of both.
    if (pass->weight_dtype) result[1] = own.narrow(0, 0, channels).to(*pass->weight_dtype, false, /*copy=*/true);
    if (pass->bias_dtype) result[2] = own.narrow(0, channels, channels).to(*pass->bias_dtype, false, /*copy=*/true);
    if (!pass->input_requires_grad) return result;
    const Tensor sums = sum_over_ranks(own, *pass);
    result[0] = input.numel() == 0 ? torch::zeros_like(input)
                                   : input_gradient(grad_output, input, weight, sums, pass->statistics, pass->eps);
    return result;
  }
};

}  // namespace

ProcessGroup group_of_synchronised_layers(const ProcessGroup& group, c10::DeviceType device) {
  return shared_own_group(group, device, "SyncBatchNorm");
}

torch::Tensor synchronised_batch_norm(const BatchNormCall& call, const ProcessGroup& group, const std::string& layer,
                                      const LayerPlace& place) {
  hold_owed_meeting();
  const CallScope scope(place.site);
  const CallLabel label(place.label);
  BatchNormCall plain = call;
  plain.input = call.input.contiguous(call.input.suggest_memory_format());
  auto pass = c10::make_intrusive<Pass>();
  pass->layer = layer;
  pass->place = {CallScope::current(), place.label};
  pass->rank = get_rank(group);
  pass->group = in_layer(*pass, [&] { return group_of_synchronised_layers(group, call.input.device().type()); });
  pass->eps = call.eps;
  pass->input_requires_grad = call.input.requires_grad();
  if (call.weight.defined() && call.weight.requires_grad()) pass->weight_dtype = call.weight.scalar_type();
  if (call.bias.defined() && call.bias.requires_grad()) pass->bias_dtype = call.bias.scalar_type();
  const bool has_values = [&] {
    const torch::NoGradGuard no_grad;
    return combine_over_ranks(plain, *pass);
  }();
  if (!has_values) {  // do what a plain layer does
    return at::native::batch_norm(call.input, call.weight, call.bias, call.running_mean, call.running_var,
                                  /*training=*/true, call.momentum, call.eps, /*cudnn_enabled=*/false);
  }
  const auto optional = [](const Tensor& tensor) {
    return tensor.defined() ? std::optional<Tensor>(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(plain.input, optional(call.weight), optional(call.bias), pass);
}

}  // namespace lockstep::nn_detail
