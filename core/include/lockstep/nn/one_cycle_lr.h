// OneCycleLR (Smith and Topin, 2017): the learning rate goes up and then far down in one cycle of batches, while the
// momentum goes down and up.
//
//   optim::OneCycleLR scheduler(optimizer, {.max_lr = {0.1}, .total_steps = epochs * batches});
//   for (auto& [images, labels] : loader) {
//     train(images, labels);
//     scheduler.step();  // after each batch
//   }
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/lr_scheduler.h"

namespace lockstep::optim {

enum class AnnealStrategy { kCos, kLinear };

struct OneCycleLROptions {
  // One value for all parameter groups, or one for each.
  std::vector<double> max_lr = {};
  // Steps of the cycle; at least 1. A step() after the last of them is an error.
  std::int64_t total_steps = 0;
  // The part of the cycle in which the rate goes up: in [0, 1].
  double pct_start = 0.3;
  AnnealStrategy anneal_strategy = AnnealStrategy::kCos;
  // Whether the momentum changes too: momentum of SGD and RMSprop, the first beta of Adam and AdamW. For other
  // optimizers, which have no momentum, true is an error.
  bool cycle_momentum = true;
  // One value for all parameter groups, or one for each.
  std::vector<double> base_momentum = {0.85};
  std::vector<double> max_momentum = {0.95};
  // The first rate is max_lr / div_factor, the last rate is (first rate) / final_div_factor. Both factors are above 0.
  double div_factor = 25.0;
  double final_div_factor = 1e4;
  // On: the rate falls to the first rate as fast as it rose, and only then to the last rate.
  bool three_phase = false;
};

class OneCycleLR final : public LRScheduler {
 public:
  // The optimizer's present rates are replaced; they do not matter.
  OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options);
  bool has_own_rates() const override { return true; }

 private:
  // Where a line or cosine ends, and the names of its ends in Python's state dict.
  struct Phase {
    double end_step;
    std::string start_lr, end_lr, start_momentum, end_momentum;
  };
  // How far which phase has come.
  struct Place {
    const Phase* phase;
    double pct;
  };

  double next_lr(std::size_t group, double present) const override;
  void check_epoch(std::int64_t epoch) const override;
  void set_momenta() override;
  void save(SchedulerState& state) const override;
  void load(const SchedulerState& state) override;
  void save_group(std::size_t group, SchedulerState& state) const override;

  void set_phases(double pct_start, bool three_phase);
  void set_ends(const OneCycleLROptions& options);
  Place place_of(std::int64_t epoch) const;
  double anneal(double start, double end, double pct) const;
  // The value of "initial_lr", "max_momentum", ... of a group.
  double value_of(const std::string& name, std::size_t group) const;

  std::int64_t total_steps_;
  AnnealStrategy anneal_strategy_;
  bool cycle_momentum_;
  std::vector<Phase> phases_;
  std::vector<double> max_lrs_, min_lrs_, base_momenta_, max_momenta_;
};

}  // namespace lockstep::optim
