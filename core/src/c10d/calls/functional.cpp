#include "lockstep/c10d/functional.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include <functional>
#include <numeric>
#include <utility>

#include "lockstep/c10d/process_groups.h"

namespace lockstep::functional {
namespace {

using torch::Tensor;
using torch::autograd::variable_list;

// A collective, and what its backward pass does. `backward` may write into the gradient if nobody else has it. Both are
// calls from `site`.
struct Rule final : torch::CustomClassHolder {
  Rule(CallSite the_site, std::function<Tensor(const Tensor&)> the_forward, std::function<Tensor(Tensor&)> the_backward)
      : site(the_site), forward(std::move(the_forward)), backward(std::move(the_backward)) {}
  const CallSite site;
  const std::function<Tensor(const Tensor&)> forward;
  const std::function<Tensor(Tensor&)> backward;
};
using RulePtr = c10::intrusive_ptr<Rule>;

// `stand_in` is not used: if it requires a gradient, so does the result, also where the input requires none.
struct Differentiable : torch::autograd::Function<Differentiable> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input, const Tensor& /*stand_in*/,
                        const RulePtr& rule) {
    context->saved_data["rule"] = torch::IValue::make_capsule(rule);
    const CallScope scope(rule->site);
    return rule->forward(input);
  }
  static variable_list backward(torch::autograd::AutogradContext* context, variable_list& gradients) {
    const auto rule = c10::static_intrusive_pointer_cast<Rule>(context->saved_data["rule"].toCapsule());
    const CallScope scope(rule->site);
    return {rule->backward(gradients[0]), Tensor(), Tensor()};
  }
};

Tensor call(CallSite site, const Tensor& input, std::function<Tensor(const Tensor&)> forward,
            std::function<Tensor(Tensor&)> backward, const Tensor& stand_in = torch::empty({0})) {
  return Differentiable::apply(input, stand_in,
                               c10::make_intrusive<Rule>(site, std::move(forward), std::move(backward)));
}

// A tensor to write into: `gradient` itself if nobody else has it, so that nothing is copied.
Tensor writable(const Tensor& gradient) {
  const bool own = gradient.use_count() == 1 && gradient.is_contiguous() && gradient.storage().use_count() == 1;
  return own ? gradient : gradient.clone(torch::MemoryFormat::Contiguous);
}

bool is_linear(const c10d::ReduceOp& op) {
  return op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG || op == c10d::ReduceOp::PREMUL_SUM;
}

void check_op(const char* what, const Tensor& input, const c10d::ReduceOp& op) {
  TORCH_CHECK_VALUE(is_linear(op) || !input.requires_grad() || !torch::GradMode::is_enabled(), "functional::", what,
                    ": expected op SUM, AVG or premul_sum, because the input requires a gradient and other operations "
                    "have none here; call it with input.detach(), or under a NoGradGuard");
}

std::int64_t rows_of(const Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.dim() > 0,
                    "functional: expected a tensor with a first dimension, got a single number; use reshape({1})");
  return tensor.size(0);
}

Tensor with_rows(const Tensor& tensor, std::int64_t rows) {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape[0] = rows;
  return torch::empty(shape, tensor.options());
}

}  // namespace

Tensor all_reduce(const Tensor& input, const ReductionOptions& options, CallSite site) {
  check_op("all_reduce", input, options.op);
  const auto forward = [options](const Tensor& values) {
    Tensor result = values.detach().clone(torch::MemoryFormat::Contiguous);
    lockstep::all_reduce(result, options);
    return result;
  };
  return call(site, input, forward, [options, site](Tensor& gradient) {
    if (torch::GradMode::is_enabled()) return functional::all_reduce(gradient, options, site);
    Tensor result = writable(gradient);
    lockstep::all_reduce(result, options);
    return result;
  });
}

Tensor all_gather_into_tensor(const Tensor& input, const CollectiveOptions& options, CallSite site) {
  const auto forward = [options](const Tensor& values) {
    const std::int64_t ranks = get_world_size(options.group);
    Tensor result = with_rows(values, ranks * rows_of(values));
    lockstep::all_gather_into_tensor(result, values.detach().contiguous(), options);
    return result;
  };
  return call(site, input, forward, [options, site](Tensor& gradient) {
    return functional::reduce_scatter_tensor(gradient, {.group = options.group, .timeout = options.timeout}, site);
  });
}

Tensor reduce_scatter_tensor(const Tensor& input, const ReductionOptions& options, CallSite site) {
  check_op("reduce_scatter_tensor", input, options.op);
  TORCH_CHECK_VALUE(
      options.op != c10d::ReduceOp::PREMUL_SUM || !input.requires_grad() || !torch::GradMode::is_enabled(),
      "functional::reduce_scatter_tensor: premul_sum has no gradient here; multiply the input instead");
  const std::int64_t ranks = get_world_size(options.group);
  const auto forward = [options, ranks](const Tensor& values) {
    Tensor result = with_rows(values, rows_of(values) / ranks);
    lockstep::reduce_scatter_tensor(result, values.detach().contiguous(), options);
    return result;
  };
  return call(site, input, forward, [options, site, ranks](Tensor& gradient) {
    const bool mean = options.op == c10d::ReduceOp::AVG;
    return functional::all_gather_into_tensor(mean ? gradient / static_cast<double>(ranks) : gradient,
                                              {.group = options.group, .timeout = options.timeout}, site);
  });
}

Tensor all_to_all_single(const Tensor& input, const AllToAllSingleOptions& options, CallSite site) {
  const std::int64_t own_rows = rows_of(input);
  const auto forward = [options, own_rows](const Tensor& values) {
    const auto& splits = options.output_splits;
    const std::int64_t rows =
        splits.empty() ? own_rows : std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
    Tensor result = with_rows(values, rows);
    lockstep::all_to_all_single(result, values.detach().contiguous(), options);
    return result;
  };
  return call(site, input, forward, [options, site, own_rows](Tensor& gradient) {
    AllToAllSingleOptions back = options;
    std::swap(back.input_splits, back.output_splits);
    // Equal parts of the input may have been cut by splits of the output, and the way back needs the rows.
    if (back.output_splits.empty() && !back.input_splits.empty()) {
      const std::int64_t ranks = get_world_size(options.group);
      back.output_splits.assign(static_cast<std::size_t>(ranks), own_rows / ranks);
    }
    return functional::all_to_all_single(gradient, back, site);
  });
}

Tensor broadcast(const Tensor& input, int src, const CollectiveOptions& options, CallSite site) {
  const auto forward = [options, src](const Tensor& values) {
    Tensor result = values.detach().clone(torch::MemoryFormat::Contiguous);
    lockstep::broadcast(result, src, options);
    return result;
  };
  const auto backward = [options, src, site](Tensor& gradient) {
    const bool is_source = get_rank() == src;
    // The sum of the gradients is needed on `src` alone.
    const ReductionOptions sum{.group = options.group, .timeout = options.timeout};
    if (torch::GradMode::is_enabled()) {
      const Tensor all = functional::all_reduce(gradient, sum, site);
      // Zeros also where the sum is infinite.
      return is_source ? all : all.masked_fill(torch::ones({}, all.options().dtype(torch::kBool)), 0);
    }
    Tensor result = writable(gradient);
    lockstep::reduce(result, src, sum);
    return is_source ? result : result.zero_();
  };
  // Only the source may know that its input requires a gradient, but all ranks take part in the backward pass.
  const bool has_gradients =
      torch::GradMode::is_enabled() && torch::autograd::isDifferentiableType(input.scalar_type());
  return call(site, input, forward, backward, torch::empty({0}).requires_grad_(has_gradients));
}

}  // namespace lockstep::functional
