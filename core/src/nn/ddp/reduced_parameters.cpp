#include "reduced_parameters.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>

#include "c10d/streams.h"

namespace lockstep::nn_detail {

ReducedParameters::ReducedParameters(std::vector<NamedParameter> parameters, const DeviceBackend& backend,
                                     OnGradient on_gradient)
    : backend_(backend), on_gradient_(std::move(on_gradient)) {
  for (NamedParameter& parameter : parameters) {
    const torch::Tensor& tensor = parameter.tensor;
    if (!tensor.requires_grad()) continue;
    const GradientInfo info{static_cast<std::size_t>(tensor.numel()), tensor.scalar_type(), /*sparse=*/false};
    all_.push_back({std::move(parameter.name), tensor, tensor.sizes().vec(), info});
  }
  hooks_.resize(all_.size());
}

// Called before each forward pass too: a conversion to another dtype or device, as by Module::to(), gives a parameter a
// new accumulator, also where a second conversion undoes the first one. Finding that out needs no other rank, which may
// have converted nothing.
void ReducedParameters::attach_hooks(const ProcessGroup& group, const std::weak_ptr<void>& reducer) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    ReducedParameter& parameter = all_[i];
    Hook& hook = hooks_[i];
    if (!parameter.tensor.requires_grad()) continue;  // frozen for a while: it has no accumulator
    if (!parameter.users) parameter.users = join_users(parameter.tensor, ranks_of(group), reducer);
    auto present = torch::autograd::impl::grad_accumulator(parameter.tensor);
    if (hook.accumulator == present) continue;
    if (hook.accumulator) hook.accumulator->del_post_hook(hook.id);
    hook.accumulator = std::move(present);
    hook.id = hook.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, i](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list& inputs) {
          on_gradient_(i, inputs.empty() ? torch::Tensor() : inputs.front());
          return outputs;
        }));
  }
}

void ReducedParameters::detach_hooks() {
  for (ReducedParameter& parameter : all_) parameter.users.reset();
  for (Hook& hook : hooks_) {
    if (hook.accumulator) hook.accumulator->del_post_hook(hook.id);
    for (const auto& [former, id] : hook.former) {
      if (const AccumulatorPtr alive = former.lock()) alive->del_post_hook(id);
    }
    hook = {};
  }
  count_user_change();
}

// Autograd adds a gradient up on the stream on which its accumulator was made. Where the forward pass begins on another
// stream now, a new accumulator spares the two streams waiting for each other; and what is recorded on one stream (a
// CUDA graph) may not wait for the default stream. The former accumulator, with its hook, lives as long as an earlier
// graph.
void ReducedParameters::follow_stream() {
  if (backend_.device().is_cpu()) return;
  const c10::Stream stream = current_stream(backend_.device());
  for (std::size_t i = 0; i < all_.size(); ++i) {
    Hook& hook = hooks_[i];
    std::erase_if(hook.former, [](const auto& former) { return former.first.expired(); });
    const AccumulatorPtr present = torch::autograd::impl::try_get_grad_accumulator(all_[i].tensor);
    if (!present || present->input_metadata(0).stream() == stream) continue;
    if (present == hook.accumulator) {
      hook.former.emplace_back(WeakAccumulatorPtr(present), hook.id);
      hook.accumulator.reset();
    }
    torch::autograd::impl::set_grad_accumulator(all_[i].tensor, WeakAccumulatorPtr(AccumulatorPtr()));
  }
}

// A graph holds the accumulators of its parameters. So do the reducers of a parameter, one of each.
bool ReducedParameters::have_graph() const {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (static_cast<long>(hooks_[i].accumulator.use_count()) > all_[i].users.use_count()) return true;
  }
  return false;
}

bool ReducedParameters::are_converted() const {
  return std::any_of(all_.begin(), all_.end(), [this](const ReducedParameter& parameter) {
    return parameter.tensor.scalar_type() != parameter.info.dtype || parameter.tensor.device() != backend_.device();
  });
}

void ReducedParameters::check_sizes() const {
  for (const ReducedParameter& parameter : all_) {
    if (parameter.tensor.sizes() != parameter.sizes) throw_changed(parameter, "parameter", parameter.tensor);
  }
}

void ReducedParameters::check_unchanged(std::size_t index) const {
  const ReducedParameter& parameter = all_[index];
  const auto check = [&](const char* what, const torch::Tensor& tensor) {
    const bool same = tensor.sizes() == parameter.sizes && tensor.scalar_type() == parameter.info.dtype &&
                      tensor.device() == backend_.device();
    if (!same) throw_changed(parameter, what, tensor);
  };
  check("parameter", parameter.tensor);
  if (parameter.tensor.grad().defined()) check("the gradient of parameter", parameter.tensor.grad());
}

void ReducedParameters::throw_changed(const ReducedParameter& parameter, const char* what,
                                      const torch::Tensor& found) const {
  TORCH_CHECK_VALUE(false, "rank ", backend_.rank(), ": ", what, " '", parameter.name, "' is ", found.scalar_type(),
                    ' ', found.sizes(), " on ", found.device(), " now, expected ", parameter.info.dtype, ' ',
                    torch::IntArrayRef(parameter.sizes), " on ", backend_.device(),
                    ", as when the model was wrapped; wrap it again after changing its shape, on every rank");
}

}  // namespace lockstep::nn_detail
