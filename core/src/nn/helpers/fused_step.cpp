#include "lockstep/nn/fused_step.h"

#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/optim.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "nn/same_memory.h"

namespace lockstep {
namespace {

using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

bool can_be_fused(const Tensor& parameter) {
  const torch::Dtype dtype = parameter.scalar_type();
  return (parameter.is_cpu() || parameter.is_cuda()) && parameter.layout() == torch::kStrided &&
         (dtype == torch::kFloat || dtype == torch::kDouble) && parameter.is_non_overlapping_and_dense() &&
         !parameter.is_neg() && !parameter.is_inference();
}

// Where one element is, there is the other's: the kernels know numbers of elements, but no strides.
bool same_order(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && nn_detail::same_strides(a.sizes(), a.strides(), b.strides());
}

bool alike(const Tensor& parameter, const Tensor& other) {
  return other.defined() && other.layout() == torch::kStrided && other.device() == parameter.device() &&
         other.scalar_type() == parameter.scalar_type() && !other.is_neg() && same_order(parameter, other);
}

// Tensors for one call of a kernel, which takes those of one device and dtype.
struct Call {
  bool first = false;  // of SGD: there is no momentum yet
  std::vector<Tensor> parameters = {};
  std::vector<Tensor> gradients = {};
  std::array<std::vector<Tensor>, 3> state = {};  // in the order of the kernel's arguments
  std::vector<std::int64_t> steps = {};
};

// The kernels for CPUs copy what is not contiguous, in vain. The elements of all tensors have the same order.
Tensor flat(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : tensor.detach().as_strided({tensor.numel()}, {1});
}

Call& add(std::vector<Call>& calls, const Tensor& parameter, bool first = false) {
  auto call = std::find_if(calls.begin(), calls.end(), [&](const Call& one) {
    const Tensor& other = one.parameters.front();
    return one.first == first && other.device() == parameter.device() && other.dtype() == parameter.dtype();
  });
  if (call == calls.end()) call = calls.insert(call, Call{.first = first});
  call->parameters.push_back(flat(parameter));
  call->gradients.push_back(flat(parameter.grad()));
  return *call;
}

// The kernels read the number of a step from a float tensor on the parameter's device. Most parameters share one.
std::vector<Tensor> step_tensors(const Call& call) {
  const auto options = torch::dtype(torch::kFloat).device(call.parameters.front().device());
  std::map<std::int64_t, Tensor> made;
  std::vector<Tensor> tensors;
  for (const std::int64_t step : call.steps) {
    Tensor& tensor = made[step];
    if (!tensor.defined()) tensor = torch::full({}, static_cast<double>(step), options);
    tensors.push_back(tensor);
  }
  return tensors;
}

// The kernels do not count their changes, step() does (but SGD's not those of parameters). Autograd and asynchronous
// checkpoints look at the counts.
void count_changes(const Call& call, bool of_parameters) {
  const auto count = [](const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) tensor.unsafeGetTensorImpl()->bump_version();
  };
  if (of_parameters) count(call.parameters);
  std::for_each(call.state.begin(), call.state.end(), count);
}

// For each optimizer: `fits`, whether its kernel can go on with a state (null: there is none), and `step`, which calls
// it for the parameters of a group that have a gradient.

struct Sgd {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;

  static bool fits(const Options& options, const Tensor& parameter, const State* state) {
    return options.momentum() == 0 || state == nullptr || alike(parameter, state->momentum_buffer());
  }

  static void step(const Options& options, const std::vector<Tensor>& parameters, Optimizer& optimizer) {
    std::vector<Call> calls;
    for (const Tensor& parameter : parameters) {
      if (options.momentum() == 0) {
        add(calls, parameter);
        continue;
      }
      const bool first = optimizer.state().count(parameter.unsafeGetTensorImpl()) == 0;
      if (first) {
        auto made = std::make_unique<State>();
        made->momentum_buffer(parameter.grad().clone());
        optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
      }
      auto& state = static_cast<State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
      add(calls, parameter, first).state[0].push_back(flat(state.momentum_buffer()));
    }
    for (const Call& call : calls) {
      at::_fused_sgd_(call.parameters, call.gradients, call.state[0], options.weight_decay(), options.momentum(),
                      options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false, call.first);
      count_changes(call, /*of_parameters=*/false);  // as by SGD::step()
    }
  }
};

template <typename OptionsType, typename StateType>
struct AdamKind {
  using Options = OptionsType;
  using State = StateType;

  static bool fits(const Options& options, const Tensor& parameter, const State* state) {
    return state == nullptr || (alike(parameter, state->exp_avg()) && alike(parameter, state->exp_avg_sq()) &&
                                (!options.amsgrad() || alike(parameter, state->max_exp_avg_sq())));
  }

  static void step(const Options& options, const std::vector<Tensor>& parameters, Optimizer& optimizer) {
    std::vector<Call> calls;
    for (const Tensor& parameter : parameters) {
      if (optimizer.state().count(parameter.unsafeGetTensorImpl()) == 0) {
        auto made = first_state(options, parameter);
        optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
      }
      auto& state = static_cast<State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
      state.step(state.step() + 1);
      Call& call = add(calls, parameter);
      call.state[0].push_back(flat(state.exp_avg()));
      call.state[1].push_back(flat(state.exp_avg_sq()));
      if (options.amsgrad()) call.state[2].push_back(flat(state.max_exp_avg_sq()));
      call.steps.push_back(state.step());
    }
    const auto [beta1, beta2] = options.betas();
    constexpr bool kDecoupled = std::is_same_v<Options, torch::optim::AdamWOptions>;
    const auto kernel = [](const auto&... arguments) {
      kDecoupled ? at::_fused_adamw_(arguments...) : at::_fused_adam_(arguments...);
    };
    for (const Call& call : calls) {
      kernel(call.parameters, call.gradients, call.state[0], call.state[1], call.state[2], step_tensors(call),
             options.lr(), beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
      count_changes(call, /*of_parameters=*/true);
    }
  }

  static std::unique_ptr<State> first_state(const Options& options, const Tensor& parameter) {
    const auto zeros = [&] { return torch::zeros_like(parameter, torch::MemoryFormat::Preserve); };
    auto state = std::make_unique<State>();
    state->step(0);
    state->exp_avg(zeros());
    state->exp_avg_sq(zeros());
    if (options.amsgrad()) state->max_exp_avg_sq(zeros());
    return state;
  }
};

using Adam = AdamKind<torch::optim::AdamOptions, torch::optim::AdamParamState>;
using AdamW = AdamKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

struct Adagrad {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;

  // The constructor has made the state. Python in LibTorch 2.11 has no fused Adagrad on CUDA devices.
  static bool fits(const Options& /*options*/, const Tensor& parameter, const State* state) {
    return parameter.is_cpu() && state != nullptr && alike(parameter, state->sum());
  }

  static void step(const Options& options, const std::vector<Tensor>& parameters, Optimizer& optimizer) {
    std::vector<Call> calls;
    for (const Tensor& parameter : parameters) {
      auto& state = static_cast<State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
      state.step(state.step() + 1);
      Call& call = add(calls, parameter);
      call.state[0].push_back(flat(state.sum()));
      call.steps.push_back(state.step());
    }
    for (const Call& call : calls) {
      at::_fused_adagrad_(call.parameters, call.gradients, call.state[0], step_tensors(call), options.lr(),
                          options.lr_decay(), options.weight_decay(), options.eps(), /*maximize=*/false);
      count_changes(call, /*of_parameters=*/true);
    }
  }
};

template <typename Kernel>
const typename Kernel::Options& options_of(const OptimizerParamGroup& group) {
  return static_cast<const typename Kernel::Options&>(group.options());
}

template <typename Kernel>
bool all_fit(Optimizer& optimizer) {
  std::unordered_set<const void*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) return false;
      if (!can_be_fused(parameter) || !alike(parameter, parameter.grad())) return false;
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      const auto* const state = found == optimizer.state().end() ? nullptr : found->second.get();
      if (!Kernel::fits(options_of<Kernel>(group), parameter, static_cast<const typename Kernel::State*>(state)))
        return false;
    }
  }
  return true;
}

template <typename Kernel>
bool take(Optimizer& optimizer) {
  if (!all_fit<Kernel>(optimizer)) return false;
  const torch::NoGradGuard no_grad;
  for (const auto& group : optimizer.param_groups()) {
    std::vector<Tensor> parameters;
    for (const Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) parameters.push_back(parameter);
    }
    Kernel::step(options_of<Kernel>(group), parameters, optimizer);
  }
  return true;
}

bool take_fused(Optimizer& optimizer) {
  const std::type_info& kind = typeid(optimizer);
  if (kind == typeid(torch::optim::SGD)) return take<Sgd>(optimizer);
  if (kind == typeid(torch::optim::Adam)) return take<Adam>(optimizer);
  if (kind == typeid(torch::optim::AdamW)) return take<AdamW>(optimizer);
  if (kind == typeid(torch::optim::Adagrad)) return take<Adagrad>(optimizer);
  return false;
}

}  // namespace

bool fused_step(torch::optim::Optimizer& optimizer) {
  const bool fused = take_fused(optimizer);
  if (!fused) optimizer.step();
  return fused;
}

}  // namespace lockstep
