// The schedules of torch.optim.lr_scheduler, under its names: how the learning rate of each parameter group depends on
// the epoch. lr_scheduler.h says what all of them have in common, one_cycle_lr.h has OneCycleLR.
//
//   optim::StepLR scheduler(optimizer, /*step_size=*/30, /*gamma=*/0.1);
//
// "rate" is the group's first rate, e the number of steps that were made. Every schedule but LambdaLR computes a rate
// from the rate before, so that several schedules can be stepped together.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "lockstep/nn/lr_scheduler.h"

namespace lockstep::optim {

// rate * gamma^floor(e / step_size).
class StepLR final : public LRScheduler {
 public:
  // step_size is at least 1.
  StepLR(torch::optim::Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);

 private:
  double next_lr(std::size_t group, double present) const override;
  double closed_form_lr(std::size_t group, double present) const override;
  void check() const override;

  std::int64_t step_size_;
  double gamma_;
};

// rate * gamma^(number of milestones that are at most e). A milestone that is there twice counts twice.
class MultiStepLR final : public LRScheduler {
 public:
  MultiStepLR(torch::optim::Optimizer& optimizer, const std::vector<std::int64_t>& milestones, double gamma = 0.1);

 private:
  double next_lr(std::size_t group, double present) const override;
  double closed_form_lr(std::size_t group, double present) const override;
  void check() const override;
  void save(SchedulerState& state) const override;
  void load(const SchedulerState& state) override;

  std::map<std::int64_t, std::int64_t> milestones_;  // milestone, and how often it was given
  double gamma_;
};

// rate * factor for the first total_iters epochs, then rate.
class ConstantLR final : public LRScheduler {
 public:
  // factor is in (0, 1]. total_iters is at least 1.
  explicit ConstantLR(torch::optim::Optimizer& optimizer, double factor = 1.0 / 3, std::int64_t total_iters = 5);

 private:
  double next_lr(std::size_t group, double present) const override;
  double closed_form_lr(std::size_t group, double present) const override;
  void check() const override;

  double factor_;
  std::int64_t total_iters_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;  // in (0, 1]
  double end_factor = 1.0;        // in [0, 1]
  std::int64_t total_iters = 5;   // at least 1: in PyTorch the rate would stay at start_factor forever with 0
};

// The linear warm-up: rate * start_factor at first, rate * end_factor from total_iters on, and a straight line between.
class LinearLR final : public LRScheduler {
 public:
  explicit LinearLR(torch::optim::Optimizer& optimizer, const LinearLROptions& options = {});

 private:
  double next_lr(std::size_t group, double present) const override;
  double closed_form_lr(std::size_t group, double present) const override;
  void check() const override;

  LinearLROptions options_;
};

// rate * gamma^e
class ExponentialLR final : public LRScheduler {
 public:
  ExponentialLR(torch::optim::Optimizer& optimizer, double gamma);

 private:
  double next_lr(std::size_t group, double present) const override;
  double closed_form_lr(std::size_t group, double present) const override;
  void check() const override;
  void load(const SchedulerState& state) override;

  double gamma_;
};

// rate * (1 - e / total_iters)^power, and 0 from total_iters on.
class PolynomialLR final : public LRScheduler {
 public:
  // total_iters is at least 1, power above 0.
  explicit PolynomialLR(torch::optim::Optimizer& optimizer, std::int64_t total_iters = 5, double power = 1.0);

 private:
  double next_lr(std::size_t group, double present) const override;
  double closed_form_lr(std::size_t group, double present) const override;
  void check() const override;

  std::int64_t total_iters_;
  double power_;
};

// eta_min + (rate - eta_min) * (1 + cos(pi * e / t_max)) / 2 (Loshchilov and Hutter, 2016): down to eta_min at t_max,
// and up again after it, as in PyTorch.
class CosineAnnealingLR final : public LRScheduler {
 public:
  // t_max is at least 1.
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, std::int64_t t_max, double eta_min = 0.0);

 private:
  double next_lr(std::size_t group, double present) const override;
  double closed_form_lr(std::size_t group, double present) const override;
  void check() const override;

  std::int64_t t_max_;
  double eta_min_;
};

// rate * factor(e): any schedule. The function is not part of the state dict.
class LambdaLR final : public LRScheduler {
 public:
  using Function = std::function<double(std::int64_t)>;
  // One function for all groups, or one for each.
  LambdaLR(torch::optim::Optimizer& optimizer, const Function& lr_lambda);
  LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Function> lr_lambdas);

 private:
  double next_lr(std::size_t group, double present) const override;
  void save(SchedulerState& state) const override;
  void load(const SchedulerState& state) override;

  std::vector<Function> lr_lambdas_;
};

}  // namespace lockstep::optim
