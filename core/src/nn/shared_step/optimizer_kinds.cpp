#include "optimizer_kinds.h"

#include <torch/optim.h>

namespace lockstep::nn_detail {
namespace {

namespace optim = torch::optim;
using Numbers = std::vector<std::pair<const char*, double>>;

template <typename Options>
Numbers adam_numbers(const Options& options) {
  const auto [beta1, beta2] = options.betas();
  return {{"lr", options.lr()},
          {"beta1", beta1},
          {"beta2", beta2},
          {"eps", options.eps()},
          {"weight_decay", options.weight_decay()},
          {"amsgrad", options.amsgrad() ? 1 : 0}};
}

template <typename State>
std::array<torch::Tensor*, kStateTensors> adam_tensors(State& state) {
  return {&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()};
}

}  // namespace

Numbers numbers_of(const optim::OptimizerOptions& options) {
  if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options)) {
    return {{"lr", sgd->lr()},
            {"momentum", sgd->momentum()},
            {"dampening", sgd->dampening()},
            {"weight_decay", sgd->weight_decay()},
            {"nesterov", sgd->nesterov() ? 1 : 0}};
  }
  if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options)) return adam_numbers(*adam);
  if (const auto* adam = dynamic_cast<const optim::AdamWOptions*>(&options)) return adam_numbers(*adam);
  if (const auto* adagrad = dynamic_cast<const optim::AdagradOptions*>(&options)) {
    return {{"lr", adagrad->lr()},
            {"lr_decay", adagrad->lr_decay()},
            {"weight_decay", adagrad->weight_decay()},
            {"initial_accumulator_value", adagrad->initial_accumulator_value()},
            {"eps", adagrad->eps()}};
  }
  TORCH_CHECK_VALUE(false, "SharedStep: expected the options of SGD, Adam, AdamW or Adagrad in every group");
}

std::array<bool, kStateTensors> state_tensors(const optim::OptimizerOptions& options) {
  if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options)) return {sgd->momentum() != 0, false, false};
  if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options)) return {true, true, adam->amsgrad()};
  if (const auto* adam = dynamic_cast<const optim::AdamWOptions*>(&options)) return {true, true, adam->amsgrad()};
  return {true, false, false};
}

std::unique_ptr<optim::OptimizerParamState> empty_state(const optim::OptimizerOptions& options) {
  if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options)) {
    return sgd->momentum() == 0 ? nullptr : std::make_unique<optim::SGDParamState>();
  }
  if (dynamic_cast<const optim::AdamOptions*>(&options) != nullptr) return std::make_unique<optim::AdamParamState>();
  if (dynamic_cast<const optim::AdamWOptions*>(&options) != nullptr) return std::make_unique<optim::AdamWParamState>();
  return std::make_unique<optim::AdagradParamState>();
}

std::array<torch::Tensor*, kStateTensors> state_tensors_of(optim::OptimizerParamState& state) {
  if (auto* sgd = dynamic_cast<optim::SGDParamState*>(&state)) return {&sgd->momentum_buffer(), nullptr, nullptr};
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state)) return adam_tensors(*adam);
  if (auto* adam = dynamic_cast<optim::AdamWParamState*>(&state)) return adam_tensors(*adam);
  return {&static_cast<optim::AdagradParamState&>(state).sum(), nullptr, nullptr};
}

std::int64_t* steps_of(optim::OptimizerParamState& state) {
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state)) return &adam->step();
  if (auto* adam = dynamic_cast<optim::AdamWParamState*>(&state)) return &adam->step();
  if (auto* adagrad = dynamic_cast<optim::AdagradParamState*>(&state)) return &adagrad->step();
  return nullptr;
}

bool needs_state(const optim::OptimizerOptions& options) {
  return dynamic_cast<const optim::AdagradOptions*>(&options) != nullptr;
}

bool counts_changes(const optim::OptimizerOptions& options) {
  return dynamic_cast<const optim::SGDOptions*>(&options) == nullptr;
}

}  // namespace lockstep::nn_detail
