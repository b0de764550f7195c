// The formulas are PyTorch's, with the same operations in the same order, so that rates have the same bits.
#include "lockstep/nn/lr_schedules.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "scheduler_state.h"

namespace lockstep::optim {
namespace {

using std::numbers::pi;

double real(std::int64_t whole) {
  return static_cast<double>(whole);
}

constexpr std::int64_t kMost = std::int64_t{1} << 53;  // whole numbers that a double holds

void check_at_least_1(std::int64_t value, const char* owner, const char* what) {
  TORCH_CHECK_VALUE(value >= 1 && value <= kMost, owner, ": ", what, " must be at least 1 and at most 2^53, found ",
                    value);
}

void check_finite(double value, const char* owner, const char* what) {
  TORCH_CHECK_VALUE(std::isfinite(value), owner, ": ", what, " must be finite, found ", value);
}

}  // namespace

StepLR::StepLR(torch::optim::Optimizer& optimizer, std::int64_t step_size, double gamma)
    : LRScheduler(optimizer, "StepLR"), step_size_(step_size), gamma_(gamma) {
  keep("step_size", step_size_);
  keep("gamma", gamma_);
  initial_step();
}
void StepLR::check() const {
  check_at_least_1(step_size_, "StepLR", "step_size");
  check_finite(gamma_, "StepLR", "gamma");
}
double StepLR::next_lr(std::size_t, double present) const {
  return last_epoch() == 0 || last_epoch() % step_size_ != 0 ? present : present * gamma_;
}
double StepLR::closed_form_lr(std::size_t group, double) const {
  return base_lr(group) * std::pow(gamma_, real(last_epoch() / step_size_));
}

MultiStepLR::MultiStepLR(torch::optim::Optimizer& optimizer, const std::vector<std::int64_t>& milestones, double gamma)
    : LRScheduler(optimizer, "MultiStepLR"), gamma_(gamma) {
  keep("gamma", gamma_);
  for (const std::int64_t milestone : milestones) ++milestones_[milestone];
  initial_step();
}
void MultiStepLR::check() const {
  check_finite(gamma_, "MultiStepLR", "gamma");
}
double MultiStepLR::next_lr(std::size_t, double present) const {
  const auto found = milestones_.find(last_epoch());
  return found == milestones_.end() ? present : present * std::pow(gamma_, real(found->second));
}
double MultiStepLR::closed_form_lr(std::size_t group, double) const {
  std::int64_t passed = 0;
  for (const auto& [milestone, count] : milestones_) passed += milestone <= last_epoch() ? count : 0;
  return base_lr(group) * std::pow(gamma_, real(passed));
}
void MultiStepLR::save(SchedulerState& state) const {
  c10::impl::GenericDict counts(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [milestone, count] : milestones_) counts.insert(milestone, count);
  state.put("milestones", counts);
}
void MultiStepLR::load(const SchedulerState& state) {
  const c10::IValue counts = state.value("milestones");
  TORCH_CHECK_VALUE(counts.isGenericDict(), "MultiStepLR: its state has \"milestones\", expected a Counter, found a ",
                    counts.tagKind());
  milestones_.clear();
  for (const auto& entry : counts.toGenericDict())
    milestones_[state.integer("milestones", entry.key())] = state.integer("milestones", entry.value());
}

ConstantLR::ConstantLR(torch::optim::Optimizer& optimizer, double factor, std::int64_t total_iters)
    : LRScheduler(optimizer, "ConstantLR"), factor_(factor), total_iters_(total_iters) {
  keep("factor", factor_);
  keep_length("total_iters", total_iters_);
  initial_step();
}
void ConstantLR::check() const {
  TORCH_CHECK_VALUE(factor_ > 0 && factor_ <= 1, "ConstantLR: factor must be in (0, 1], found ", factor_);
  check_at_least_1(total_iters_, "ConstantLR", "total_iters");
}
double ConstantLR::next_lr(std::size_t, double present) const {
  if (last_epoch() == 0) return present * factor_;
  return last_epoch() == total_iters_ ? present * (1.0 / factor_) : present;
}
double ConstantLR::closed_form_lr(std::size_t group, double) const {
  return base_lr(group) * (factor_ + (last_epoch() >= total_iters_ ? 1.0 : 0.0) * (1 - factor_));
}

LinearLR::LinearLR(torch::optim::Optimizer& optimizer, const LinearLROptions& options)
    : LRScheduler(optimizer, "LinearLR"), options_(options) {
  keep("start_factor", options_.start_factor);
  keep("end_factor", options_.end_factor);
  keep_length("total_iters", options_.total_iters);
  initial_step();
}
void LinearLR::check() const {
  TORCH_CHECK_VALUE(options_.start_factor > 0 && options_.start_factor <= 1,
                    "LinearLR: start_factor must be in (0, 1], found ", options_.start_factor);
  TORCH_CHECK_VALUE(options_.end_factor >= 0 && options_.end_factor <= 1,
                    "LinearLR: end_factor must be in [0, 1], found ", options_.end_factor);
  check_at_least_1(options_.total_iters, "LinearLR", "total_iters");
}
double LinearLR::next_lr(std::size_t, double present) const {
  if (last_epoch() == 0) return present * options_.start_factor;
  if (is_initial() || last_epoch() > options_.total_iters) return present;
  const double rise = options_.end_factor - options_.start_factor;
  return present * (1.0 + rise / (real(options_.total_iters) * options_.start_factor + real(last_epoch() - 1) * rise));
}
double LinearLR::closed_form_lr(std::size_t group, double) const {
  const std::int64_t steps = std::min(options_.total_iters, last_epoch());
  return base_lr(group) * (options_.start_factor +
                           (options_.end_factor - options_.start_factor) * real(steps) / real(options_.total_iters));
}

ExponentialLR::ExponentialLR(torch::optim::Optimizer& optimizer, double gamma)
    : LRScheduler(optimizer, "ExponentialLR"), gamma_(gamma) {
  keep("gamma", gamma_);
  initial_step();
}
void ExponentialLR::check() const {
  check_finite(gamma_, "ExponentialLR", "gamma");
}
double ExponentialLR::next_lr(std::size_t, double present) const {
  return is_initial() ? present : present * gamma_;
}
double ExponentialLR::closed_form_lr(std::size_t group, double) const {
  return base_lr(group) * std::pow(gamma_, real(last_epoch()));
}
// StepLR, MultiStepLR and Python's CyclicLR have a gamma too, with another meaning.
void ExponentialLR::load(const SchedulerState& state) {
  state.refuse_keys({"step_size", "milestones", "scale_mode"});
}

PolynomialLR::PolynomialLR(torch::optim::Optimizer& optimizer, std::int64_t total_iters, double power)
    : LRScheduler(optimizer, "PolynomialLR"), total_iters_(total_iters), power_(power) {
  keep_length("total_iters", total_iters_);
  keep("power", power_);
  initial_step();
}
void PolynomialLR::check() const {
  check_at_least_1(total_iters_, "PolynomialLR", "total_iters");
  TORCH_CHECK_VALUE(power_ > 0 && std::isfinite(power_), "PolynomialLR: power must be above 0, found ", power_);
}
double PolynomialLR::next_lr(std::size_t, double present) const {
  if (is_initial() || last_epoch() > total_iters_) return present;
  const double left = 1.0 - real(last_epoch()) / real(total_iters_);
  const double left_before = 1.0 - real(last_epoch() - 1) / real(total_iters_);
  return present * std::pow(left / left_before, power_);
}
double PolynomialLR::closed_form_lr(std::size_t group, double) const {
  const std::int64_t steps = std::min(total_iters_, last_epoch());
  return base_lr(group) * std::pow(1.0 - real(steps) / real(total_iters_), power_);
}

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer, std::int64_t t_max, double eta_min)
    : LRScheduler(optimizer, "CosineAnnealingLR"), t_max_(t_max), eta_min_(eta_min) {
  keep_length("T_max", t_max_);
  keep("eta_min", eta_min_);
  initial_step();
}
void CosineAnnealingLR::check() const {
  check_at_least_1(t_max_, "CosineAnnealingLR", "t_max");
  check_finite(eta_min_, "CosineAnnealingLR", "eta_min");
}
double CosineAnnealingLR::next_lr(std::size_t group, double present) const {
  if (is_initial()) return present;
  const std::int64_t epoch = last_epoch();
  // The rate before was eta_min: there is nothing to multiply.
  if ((epoch - 1 - t_max_) % (2 * t_max_) == 0)
    return present + (base_lr(group) - eta_min_) * (1 - std::cos(pi / real(t_max_))) / 2;
  return (1 + std::cos(pi * real(epoch) / real(t_max_))) / (1 + std::cos(pi * real(epoch - 1) / real(t_max_))) *
             (present - eta_min_) +
         eta_min_;
}
double CosineAnnealingLR::closed_form_lr(std::size_t group, double) const {
  return eta_min_ + (base_lr(group) - eta_min_) * (1 + std::cos(pi * real(last_epoch()) / real(t_max_))) / 2;
}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, const Function& lr_lambda)
    : LambdaLR(optimizer, std::vector<Function>(optimizer.param_groups().size(), lr_lambda)) {}
LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Function> lr_lambdas)
    : LRScheduler(optimizer, "LambdaLR"), lr_lambdas_(std::move(lr_lambdas)) {
  TORCH_CHECK_VALUE(lr_lambdas_.size() == group_count(), "LambdaLR: expected a function for each of ", group_count(),
                    " parameter groups, found ", lr_lambdas_.size());
  for (const Function& function : lr_lambdas_) {
    TORCH_CHECK_VALUE(function, "LambdaLR: a function is empty");
  }
  initial_step();
}
double LambdaLR::next_lr(std::size_t group, double) const {
  return base_lr(group) * lr_lambdas_[group](last_epoch());
}
void LambdaLR::save(SchedulerState& state) const {
  state.put_list("lr_lambdas", std::vector<c10::IValue>(lr_lambdas_.size()));  // None, as Python saves functions
}
void LambdaLR::load(const SchedulerState& state) {
  const std::size_t count = state.list("lr_lambdas").size();
  TORCH_CHECK_VALUE(count == lr_lambdas_.size(), "LambdaLR: its state has ", count, " functions, the program ",
                    lr_lambdas_.size());
}

}  // namespace lockstep::optim
