#include "own_step.h"

#include <torch/optim.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/instruction_set.h"
#include "lockstep/nn/fused_step.h"
#include "optimizer_kinds.h"

namespace lockstep::nn_detail {
namespace {

namespace optim = torch::optim;

StepNumbers sgd_numbers(const optim::SGDOptions& options, bool first) {
  return {.kind = StepKind::kSgd,
          .first = first,
          .decays = options.weight_decay() != 0,
          .momentum = options.momentum() != 0,
          .nesterov = options.nesterov(),
          .changed = static_cast<std::uint8_t>(options.momentum() != 0 && !first ? 2 : 1),
          .rate = static_cast<float>(-options.lr()),
          .decay = static_cast<float>(options.weight_decay()),
          .keep = static_cast<float>(options.momentum()),
          .take = static_cast<float>(1 - options.dampening())};
}

// LibTorch reads the number of the step from a float.
template <typename Options>
StepNumbers adam_numbers_of(const Options& options, bool first, std::int64_t step) {
  constexpr bool kDecoupled = std::is_same_v<Options, optim::AdamWOptions>;
  const auto [beta1, beta2] = options.betas();
  const double number = static_cast<float>(step);
  const double step_size = options.lr() / (1 - std::pow(beta1, number));
  const double decay = kDecoupled ? 1 - options.lr() * options.weight_decay() : options.weight_decay();
  return {.kind = kDecoupled ? StepKind::kAdamW : StepKind::kAdam,
          .first = first,
          .decays = options.weight_decay() != 0,
          .amsgrad = options.amsgrad(),
          .changed = static_cast<std::uint8_t>(first               ? 1
                                               : options.amsgrad() ? 4
                                                                   : 3),
          .rate = static_cast<float>(-step_size),
          .decay = static_cast<float>(decay),
          .keep = static_cast<float>(beta2),
          .take = static_cast<float>(1 - beta1),
          .take_square = static_cast<float>(1 - beta2),
          .root_divisor = static_cast<float>(std::sqrt(1 - std::pow(beta2, number))),
          .eps = static_cast<float>(options.eps())};
}

StepNumbers adagrad_numbers(const optim::AdagradOptions& options, std::int64_t step) {
  const double rate = options.lr() / (1.0 + (static_cast<float>(step) - 1.0) * options.lr_decay());
  return {.kind = StepKind::kAdagrad,
          .decays = options.weight_decay() != 0,
          .changed = 2,
          .rate = static_cast<float>(rate),
          .decay = static_cast<float>(options.weight_decay()),
          .eps = static_cast<float>(options.eps())};
}

StepKernel kernel_for(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return step_avx512;
  if (set == InstructionSet::kAvx2 && __builtin_cpu_supports("fma")) return step_avx2;
#endif
  (void)set;
  return step_portable;
}

// Numbers of all sizes, without the generator of the program. They fill some units, a vector of LibTorch, and the
// longest rest.
torch::Tensor trial_values(std::uint64_t seed) {
  constexpr std::int64_t kElements = 9 * static_cast<std::int64_t>(kStepUnit) - 1;
  torch::Tensor result = torch::empty({kElements}, torch::kFloat);
  std::uint64_t state = seed;
  for (std::int64_t i = 0; i < kElements; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const double mantissa = static_cast<double>(state >> 40) / (1 << 23) - 1;
    result.mutable_data_ptr<float>()[i] =
        static_cast<float>(std::ldexp(mantissa, static_cast<int>(state >> 33 & 15) - 10));
  }
  return result;
}

// Two steps from the same values, the first of them with a new state.
template <typename Inner, typename Options>
bool gives_the_same_bits(StepKernel kernel, const Options& options) {
  const torch::Tensor theirs = trial_values(1);
  const torch::Tensor ours = theirs.clone();
  Inner optimizer(std::vector<torch::Tensor>{theirs}, options);
  std::vector<torch::Tensor> state;
  for (std::size_t i = 0; i < kStateTensors; ++i) state.push_back(torch::zeros_like(ours));
  for (std::int64_t step = 1; step <= 2; ++step) {
    const torch::Tensor gradient = trial_values(1 + static_cast<std::uint64_t>(step));
    theirs.mutable_grad() = gradient;
    if (!fused_step(optimizer)) return false;
    const float* const only = gradient.const_data_ptr<float>();
    StepUndo undo;
    std::uint64_t word = 0;
    StepRequest request{.numbers = step_numbers(optimizer.param_groups()[0].options(), step == 1, step),
                        .values = ours.mutable_data_ptr<float>(),
                        .gradients = &only,
                        .count = static_cast<std::size_t>(ours.numel()),
                        .undo = &undo,
                        .word = &word};
    for (std::size_t i = 0; i < kStateTensors; ++i) request.state[i] = state[i].mutable_data_ptr<float>();
    kernel(request);
  }
  const auto same = [](const torch::Tensor& a, const torch::Tensor& b) {
    return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
  };
  if (!same(ours, theirs)) return false;
  const auto made = optimizer.state().find(theirs.unsafeGetTensorImpl());
  if (made == optimizer.state().end()) return true;
  const auto tensors = state_tensors_of(*made->second);
  for (std::size_t i = 0; i < kStateTensors; ++i) {
    if (tensors[i] != nullptr && tensors[i]->defined() && !same(state[i], *tensors[i])) return false;
  }
  return true;
}

// Each path of the kernels once.
bool is_exact(StepKernel kernel) {
  for (const double decay : {0.0, 0.01}) {
    for (const bool second : {false, true}) {
      const auto sgd = optim::SGDOptions(0.1).weight_decay(decay);
      if (!gives_the_same_bits<optim::SGD>(kernel, sgd)) return false;
      if (!gives_the_same_bits<optim::SGD>(kernel, optim::SGDOptions(sgd).momentum(0.9).nesterov(second))) return false;
      if (!gives_the_same_bits<optim::SGD>(kernel, optim::SGDOptions(sgd).momentum(0.8).dampening(0.3))) return false;
      for (const double beta1 : {0.9, 0.3}) {
        const std::tuple<double, double> betas{beta1, 0.99};
        const auto adam = optim::AdamOptions(0.01).weight_decay(decay).betas(betas).amsgrad(second);
        if (!gives_the_same_bits<optim::Adam>(kernel, adam)) return false;
        const auto adamw = optim::AdamWOptions(0.01).weight_decay(decay).betas(betas).amsgrad(second);
        if (!gives_the_same_bits<optim::AdamW>(kernel, adamw)) return false;
      }
    }
    if (!gives_the_same_bits<optim::Adagrad>(kernel, optim::AdagradOptions(0.1).lr_decay(0.1).weight_decay(decay)))
      return false;
  }
  return true;
}

}  // namespace

StepNumbers step_numbers(const optim::OptimizerOptions& options, bool first, std::int64_t step) {
  if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options)) return sgd_numbers(*sgd, first);
  if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options)) return adam_numbers_of(*adam, first, step);
  if (const auto* adam = dynamic_cast<const optim::AdamWOptions*>(&options)) return adam_numbers_of(*adam, first, step);
  return adagrad_numbers(dynamic_cast<const optim::AdagradOptions&>(options), step);
}

StepKernel own_step_kernel() {
  static const StepKernel kernel = [] {
    const StepKernel one = kernel_for(instruction_set());
    return is_exact(one) ? one : nullptr;
  }();
  return kernel;
}

}  // namespace lockstep::nn_detail
