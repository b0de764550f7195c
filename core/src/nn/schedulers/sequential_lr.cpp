#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "lockstep/nn/lr_scheduler.h"
#include "scheduler_state.h"

namespace lockstep::optim {
namespace {

using Schedulers = std::vector<std::shared_ptr<LRScheduler>>;

// Before the base class reads them.
Schedulers checked(Schedulers schedulers) {
  TORCH_CHECK_VALUE(!schedulers.empty(), "SequentialLR: expected at least one scheduler");
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    TORCH_CHECK_VALUE(schedulers[i] != nullptr, "SequentialLR: scheduler ", i, " is null");
  }
  return schedulers;
}

}  // namespace

SequentialLR::SequentialLR(torch::optim::Optimizer& optimizer, Schedulers schedulers,
                           std::vector<std::int64_t> milestones)
    : LRScheduler(optimizer, "SequentialLR", checked(std::move(schedulers))), milestones_(std::move(milestones)) {
  check_milestones();
  for (std::size_t i = 1; i < parts().size(); ++i) {
    TORCH_CHECK_VALUE(parts()[i]->parts_.empty(), "SequentialLR: only the first scheduler may combine others, found a ",
                      parts()[i]->name_, " as scheduler ", i);
  }
  // Each part has made its first step with the rates of the part before it. Begin again.
  auto& groups = optimizer.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) groups[group].options().set_lr(base_lr(group));
  undo_initial_step();
  last_epoch_ = 0;
  parts()[part_at(0)]->initial_step();
  last_lr_ = present_lrs();
}

void SequentialLR::check_milestones() const {
  TORCH_CHECK_VALUE(milestones_.size() + 1 == parts().size(), "SequentialLR: expected ", parts().size() - 1,
                    " milestones for ", parts().size(), " schedulers, found ", milestones_.size());
  TORCH_CHECK_VALUE(
      std::is_sorted(milestones_.begin(), milestones_.end()) && (milestones_.empty() || milestones_.front() >= 0),
      "SequentialLR: expected milestones that ascend from 0 or later, found ", c10::IntArrayRef(milestones_));
}

std::size_t SequentialLR::part_at(std::int64_t epoch) const {
  return static_cast<std::size_t>(std::upper_bound(milestones_.begin(), milestones_.end(), epoch) -
                                  milestones_.begin());
}

void SequentialLR::step() {
  const std::int64_t epoch = last_epoch_ + 1;
  const std::size_t index = part_at(epoch);
  LRScheduler& part = *parts()[index];
  if (index > 0 && milestones_[index - 1] == epoch) {
    part.go_to(0, /*closed_form=*/true);
  } else {
    part.step();
  }
  last_epoch_ = epoch;
  last_lr_ = part.last_lr_;
}

void SequentialLR::save(SchedulerState& state) const {
  state.put_list("_milestones", milestones_);
  state.put("last_epoch", last_epoch_);
}

void SequentialLR::load(const SchedulerState& state) {
  milestones_ = state.integers("_milestones");
  check_milestones();
  last_epoch_ = state.integer("last_epoch");
}

}  // namespace lockstep::optim
