#include "lockstep/nn/activation_checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>

#include "lockstep/nn/mixed_precision.h"

namespace lockstep::nn_detail {
namespace {

using torch::Tensor;
using torch::autograd::variable_list;
using SegmentCall = std::function<variable_list(const variable_list&)>;

// The states of the generators that a segment may draw from.
class GeneratorStates {
 public:
  explicit GeneratorStates(const std::vector<torch::Device>& devices) {
    for (const torch::Device& device : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::scoped_lock lock(generator.mutex());
      states_.emplace_back(generator, generator.get_state());
    }
  }
  void restore() {
    for (auto& [generator, state] : states_) {
      const std::scoped_lock lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  std::vector<std::pair<at::Generator, Tensor>> states_;
};

struct AutocastBefore {
  explicit AutocastBefore(torch::DeviceType the_device)
      : device(the_device),
        enabled(at::autocast::is_autocast_enabled(the_device)),
        dtype(at::autocast::get_autocast_dtype(the_device)) {}
  torch::DeviceType device;
  bool enabled;
  torch::Dtype dtype;
};

// Autocast as it was, for a scope: on, or off although the backward pass runs with autocast.
class AutocastAgain {
 public:
  explicit AutocastAgain(const AutocastBefore& before) : now_(before.device) {
    if (before.enabled) {
      on_.emplace(before.device, before.dtype);
    } else {
      at::autocast::set_autocast_enabled(before.device, false);
    }
  }
  ~AutocastAgain() {
    on_.reset();
    at::autocast::set_autocast_enabled(now_.device, now_.enabled);
  }
  AutocastAgain(const AutocastAgain&) = delete;
  AutocastAgain& operator=(const AutocastAgain&) = delete;

 private:
  AutocastBefore now_;
  std::optional<Autocast> on_;
};

// For a scope, autocast casts parameters anew. What it keeps of a segment's forward pass has no graph, so the gradient
// of a later use of the same parameter would be lost; what it keeps from outside has a graph of its own, which is no
// part of the computation again.
class NoKeptCasts {
 public:
  NoKeptCasts() { at::autocast::set_autocast_cache_enabled(false); }
  ~NoKeptCasts() { at::autocast::set_autocast_cache_enabled(before_); }
  NoKeptCasts(const NoKeptCasts&) = delete;
  NoKeptCasts& operator=(const NoKeptCasts&) = delete;

 private:
  const bool before_ = at::autocast::is_autocast_cache_enabled();
};

// The CPU first: some work of a segment on another device is done there.
std::vector<torch::Device> devices_of(const variable_list& inputs) {
  std::vector<torch::Device> devices{torch::Device(torch::kCPU)};
  for (const Tensor& input : inputs) {
    if (!input.defined() || !(input.is_cuda() || input.is_privateuseone())) continue;
    if (std::find(devices.begin(), devices.end(), input.device()) == devices.end()) devices.push_back(input.device());
  }
  return devices;
}

// A segment, and what surrounded its first call.
class KeptSegment final : public torch::CustomClassHolder {
 public:
  KeptSegment(SegmentCall call, const std::vector<torch::Device>& devices)
      : call_(std::move(call)), devices_(devices), generators_(devices) {
    for (const torch::Device& device : devices) {
      const auto same_type = [&](const AutocastBefore& one) { return one.device == device.type(); };
      if (std::none_of(autocasts_.begin(), autocasts_.end(), same_type)) autocasts_.emplace_back(device.type());
    }
  }
  variable_list call(const variable_list& inputs) const {
    const NoKeptCasts no_kept_casts;
    return call_(inputs);
  }
  variable_list call_again(const variable_list& inputs) {
    const NoKeptCasts no_kept_casts;
    GeneratorStates now(devices_);
    std::vector<std::unique_ptr<AutocastAgain>> autocasts;
    for (const AutocastBefore& before : autocasts_) autocasts.push_back(std::make_unique<AutocastAgain>(before));
    const torch::AutoGradMode with_gradients(true);
    generators_.restore();
    try {
      variable_list outputs = call_(inputs);
      now.restore();
      return outputs;
    } catch (...) {
      now.restore();
      throw;
    }
  }

 private:
  const SegmentCall call_;
  const std::vector<torch::Device> devices_;
  GeneratorStates generators_;
  std::vector<AutocastBefore> autocasts_;
};
using KeptPtr = c10::intrusive_ptr<KeptSegment>;

void check_defined(const variable_list& tensors, const char* what) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_VALUE(tensors[i].defined(), "activation_checkpoint: ", what, ' ', i,
                      " of the segment is an undefined tensor; expected defined ones only: let the callable capture "
                      "what says that one is missing, or return fewer tensors");
  }
}

// Grows when the tensor is written to. LibTorch counts nothing of inference tensors.
std::int64_t version_of(const Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version());
}

// Its first input stands for the parameters: the outputs require a gradient, also if no other input does.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static variable_list forward(torch::autograd::AutogradContext* context, const Tensor& /*parameters*/,
                               const at::TensorList& inputs, const KeptPtr& segment) {
    context->save_for_backward(inputs.vec());
    context->saved_data["segment"] = torch::IValue::make_capsule(segment);
    std::vector<std::int64_t> versions;
    std::transform(inputs.begin(), inputs.end(), std::back_inserter(versions), version_of);
    variable_list outputs = segment->call(inputs.vec());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      TORCH_CHECK_VALUE(version_of(inputs[i]) == versions[i],
                        "activation_checkpoint: the segment has written to input ", i,
                        ", so its second computation would begin with other values; expected a segment that leaves "
                        "its inputs as they are: clone() the input in the segment, or use an operation that is not in "
                        "place");
    }
    check_defined(outputs, "output");
    return outputs;
  }
  static variable_list backward(torch::autograd::AutogradContext* context, variable_list& gradients) {
    TORCH_CHECK(
        !torch::GradMode::is_enabled(),
        "activation_checkpoint: a backward pass with create_graph, whose graph would miss the segment; expected "
        "one without it. Call the segment without activation_checkpoint where a gradient of a gradient is needed");
    TORCH_CHECK(
        torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
        "activation_checkpoint: a backward pass for the gradients of single tensors (torch::autograd::grad(), or "
        "backward() with inputs), in which the segment would add to the gradients of all its parameters; "
        "expected backward() without inputs");
    const auto segment = c10::static_intrusive_pointer_cast<KeptSegment>(context->saved_data["segment"].toCapsule());
    variable_list inputs = context->get_saved_variables();
    for (Tensor& input : inputs) {
      if (input.defined()) input = input.detach().requires_grad_(input.requires_grad());
    }
    const variable_list outputs = segment->call_again(inputs);
    TORCH_CHECK_VALUE(outputs.size() == gradients.size(), "activation_checkpoint: the segment returned ",
                      gradients.size(), " tensors in the forward pass and ", outputs.size(),
                      " in the backward pass; it must do the same both times");
    variable_list roots;
    variable_list root_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    variable_list result(1);  // of the stand-in for the parameters
    for (const Tensor& input : inputs) result.push_back(input.defined() ? input.grad() : Tensor());
    result.emplace_back();  // of the segment
    return result;
  }
};

}  // namespace

variable_list run_checkpointed(SegmentCall segment, const variable_list& inputs) {
  if (!torch::GradMode::is_enabled()) return segment(inputs);
  check_defined(inputs, "input");
  const auto kept = c10::make_intrusive<KeptSegment>(std::move(segment), devices_of(inputs));
  return Checkpointed::apply(torch::empty({0}).requires_grad_(), at::TensorList(inputs), kept);
}

}  // namespace lockstep::nn_detail
