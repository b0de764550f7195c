// The formulas are PyTorch's, with the same operations in the same order, so that rates have the same bits.
#include "lockstep/nn/one_cycle_lr.h"

#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <numbers>

#include "scheduler_state.h"

namespace lockstep::optim {
namespace {

// Null if the optimizer has none.
double* momentum_of(torch::optim::OptimizerOptions& options) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options)) return &sgd->momentum();
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) return &rmsprop->momentum();
  if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return &std::get<0>(adam->betas());
  if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return &std::get<0>(adamw->betas());
  return nullptr;
}

bool has_betas(torch::optim::OptimizerOptions& options) {
  return dynamic_cast<torch::optim::AdamOptions*>(&options) != nullptr ||
         dynamic_cast<torch::optim::AdamWOptions*>(&options) != nullptr;
}

std::vector<double> for_groups(const std::vector<double>& values, std::size_t groups, const char* what) {
  TORCH_CHECK_VALUE(values.size() == 1 || values.size() == groups, "OneCycleLR: expected one ", what,
                    " or one for each of ", groups, " parameter groups, found ", values.size());
  for (const double value : values) {
    TORCH_CHECK_VALUE(std::isfinite(value), "OneCycleLR: ", what, " must be finite, found ", value);
  }
  return values.size() == groups ? values : std::vector<double>(groups, values[0]);
}

}  // namespace

OneCycleLR::OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options)
    : LRScheduler(optimizer, "OneCycleLR"),
      total_steps_(options.total_steps),
      anneal_strategy_(options.anneal_strategy),
      cycle_momentum_(options.cycle_momentum) {
  TORCH_CHECK_VALUE(total_steps_ >= 1, "OneCycleLR: total_steps must be at least 1, found ", total_steps_);
  TORCH_CHECK_VALUE(options.pct_start >= 0 && options.pct_start <= 1, "OneCycleLR: pct_start must be in [0, 1], found ",
                    options.pct_start);
  TORCH_CHECK_VALUE(options.div_factor > 0 && options.final_div_factor > 0,
                    "OneCycleLR: div_factor and final_div_factor must be above 0, found ", options.div_factor, " and ",
                    options.final_div_factor);
  keep_length("total_steps", total_steps_);
  set_phases(options.pct_start, options.three_phase);
  check_epoch(0);
  set_ends(options);
  initial_step();
}

void OneCycleLR::set_phases(double pct_start, bool three_phase) {
  const auto steps = static_cast<double>(total_steps_);
  const double peak = pct_start * steps - 1;
  const Phase up{peak, "initial_lr", "max_lr", "max_momentum", "base_momentum"};
  if (three_phase) {
    phases_ = {up,
               {2 * pct_start * steps - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"},
               {steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"}};
  } else {
    phases_ = {up, {steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"}};
  }
}

void OneCycleLR::set_ends(const OneCycleLROptions& options) {
  const std::size_t groups = group_count();
  max_lrs_ = for_groups(options.max_lr, groups, "max_lr");
  base_momenta_ = for_groups(options.base_momentum, groups, "base_momentum");
  max_momenta_ = for_groups(options.max_momentum, groups, "max_momentum");
  if (cycle_momentum_) {
    for (auto& group : optimizer().param_groups()) {
      TORCH_CHECK_VALUE(momentum_of(group.options()) != nullptr,
                        "OneCycleLR: this optimizer has neither a momentum nor betas: set cycle_momentum to false");
    }
  }
  std::vector<double> initial;
  for (const double max_lr : max_lrs_) {
    initial.push_back(max_lr / options.div_factor);
    min_lrs_.push_back(initial.back() / options.final_div_factor);
  }
  set_initial_lrs(initial);
}

OneCycleLR::Place OneCycleLR::place_of(std::int64_t epoch) const {
  const auto step = static_cast<double>(epoch);
  double start_step = 0;
  for (std::size_t i = 0;; ++i) {
    const Phase& phase = phases_[i];
    if (step <= phase.end_step || i + 1 == phases_.size()) {
      // Python divides by zero here.
      TORCH_CHECK_VALUE(phase.end_step != start_step, "OneCycleLR: the phase of step ", epoch, " of ", total_steps_,
                        " has no length: change pct_start or total_steps");
      return {&phase, (step - start_step) / (phase.end_step - start_step)};
    }
    start_step = phase.end_step;
  }
}

void OneCycleLR::check_epoch(std::int64_t epoch) const {
  TORCH_CHECK_VALUE(epoch <= total_steps_, "OneCycleLR: step ", epoch, " is beyond total_steps, which is ",
                    total_steps_);
  static_cast<void>(place_of(epoch));
}

double OneCycleLR::anneal(double start, double end, double pct) const {
  if (anneal_strategy_ == AnnealStrategy::kLinear) return (end - start) * pct + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * pct) + 1);
}

double OneCycleLR::value_of(const std::string& name, std::size_t group) const {
  if (name == "initial_lr") return base_lr(group);
  if (name == "max_lr") return max_lrs_[group];
  if (name == "min_lr") return min_lrs_[group];
  if (name == "max_momentum") return max_momenta_[group];
  if (name == "base_momentum") return base_momenta_[group];
  C10_THROW_ERROR(ValueError, c10::str("OneCycleLR: a phase begins or ends with an unknown \"", name, "\""));
}

double OneCycleLR::next_lr(std::size_t group, double) const {
  const Place place = place_of(last_epoch());
  return anneal(value_of(place.phase->start_lr, group), value_of(place.phase->end_lr, group), place.pct);
}

void OneCycleLR::set_momenta() {
  if (!cycle_momentum_) return;
  const Place place = place_of(last_epoch());
  auto& groups = optimizer().param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    *momentum_of(groups[group].options()) =
        anneal(value_of(place.phase->start_momentum, group), value_of(place.phase->end_momentum, group), place.pct);
  }
}

void OneCycleLR::save(SchedulerState& state) const {
  std::vector<c10::IValue> phases;
  for (const Phase& phase : phases_) {
    SchedulerState entry("OneCycleLR");
    entry.put("end_step", phase.end_step);
    entry.put("start_lr", phase.start_lr);
    entry.put("end_lr", phase.end_lr);
    entry.put("start_momentum", phase.start_momentum);
    entry.put("end_momentum", phase.end_momentum);
    phases.push_back(entry.dict());
  }
  state.put_list("_schedule_phases", phases);
  state.put("_anneal_func_type", anneal_strategy_ == AnnealStrategy::kCos ? "cos" : "linear");
  state.put("cycle_momentum", cycle_momentum_);
  if (cycle_momentum_) state.put("use_beta1", has_betas(optimizer().param_groups()[0].options()));
}

void OneCycleLR::load(const SchedulerState& state) {
  TORCH_CHECK_VALUE(total_steps_ >= 1, "OneCycleLR: its state has total_steps ", total_steps_, ", expected at least 1");
  phases_.clear();
  for (const c10::IValue& value : state.list("_schedule_phases")) {
    const SchedulerState entry("OneCycleLR", value);
    phases_.push_back({entry.number("end_step"), entry.text("start_lr"), entry.text("end_lr"),
                       entry.text("start_momentum"), entry.text("end_momentum")});
    for (const std::string& name :
         {phases_.back().start_lr, phases_.back().end_lr, phases_.back().start_momentum, phases_.back().end_momentum}) {
      static_cast<void>(value_of(name, 0));
    }
  }
  TORCH_CHECK_VALUE(!phases_.empty(), "OneCycleLR: its state has no phases");
  const std::string strategy = state.text("_anneal_func_type");
  TORCH_CHECK_VALUE(strategy == "cos" || strategy == "linear", "OneCycleLR: its state has _anneal_func_type \"",
                    strategy, "\", expected cos or linear");
  anneal_strategy_ = strategy == "cos" ? AnnealStrategy::kCos : AnnealStrategy::kLinear;
  const bool cycle_momentum = state.flag("cycle_momentum");
  TORCH_CHECK_VALUE(cycle_momentum == cycle_momentum_, "OneCycleLR: its state ", cycle_momentum ? "changes" : "keeps",
                    " the momentum, the program ", cycle_momentum_ ? "changes" : "keeps", " it");
}

void OneCycleLR::save_group(std::size_t group, SchedulerState& state) const {
  state.put("max_lr", max_lrs_[group]);
  state.put("min_lr", min_lrs_[group]);
  if (!cycle_momentum_) return;
  state.put("max_momentum", max_momenta_[group]);
  state.put("base_momentum", base_momenta_[group]);
}

}  // namespace lockstep::optim
