// Learning rate schedulers: the base class, and those that combine others. lr_schedules.h has the schedules.
//
//   auto warmup = std::make_shared<optim::LinearLR>(optimizer, optim::LinearLROptions{.start_factor = 0.1});
//   auto cosine = std::make_shared<optim::CosineAnnealingLR>(optimizer, epochs - 5);
//   optim::SequentialLR scheduler(optimizer, {warmup, cosine}, {5});
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     train(optimizer);
//     scheduler.step();
//   }
//
// Names, rules and defaults are those of torch.optim.lr_scheduler, and so are the rates, bit for bit: the constructor
// sets the rates of the first epoch, and each step() those of the next. LibTorch's own torch::optim::StepLR is one step
// behind Python's. Schedulers of one optimizer may be stepped one after the other; each changes what the last one left.
//
// Several schedulers of one optimizer share its first rates, as with Python's group["initial_lr"]: these are the rates
// that it has when the first of them is made, until the last of them is gone.
//
// A scheduler changes the groups of its optimizer and sends nothing: call step() on every rank, as optimizer.step(). It
// keeps a reference: the optimizer must live longer. The number of groups must not change. Not thread-safe. Wrong
// arguments are ValueErrors (c10::ValueError) that name them.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace lockstep::optim {

class SchedulerState;
struct InitialRates;

// The base of all schedulers. For a schedule of your own use LambdaLR.
class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  // Sets the rates of the next epoch (or of the next batch, if that is how the schedule counts). To be called after the
  // optimizer's steps of this one.
  virtual void step();

  // What the last step has set, by parameter group.
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  // How often step() was called. Below 0 for a part of a SequentialLR that has not begun.
  std::int64_t last_epoch() const { return last_epoch_; }
  // The arguments of the constructor, of all parts, that a program computes from the length of its training: t_max,
  // total_iters, total_steps. A state dict that is loaded replaces them. Empty: the schedule has no end.
  std::vector<std::int64_t> lengths() const;
  // Whether rates are arguments of the constructor, as the peak of OneCycleLR, or of that of a part. They are in no
  // state dict.
  virtual bool has_own_rates() const;

  // Python's scheduler.state_dict(): a dict of numbers, lists and dicts with its keys, which Python's
  // load_state_dict() takes. The present rates and momenta are not in it: they belong to the optimizer.
  c10::IValue state_dict() const;
  // Takes over a state of this class from C++ or Python, arguments of the constructor included, as in Python. The
  // optimizer keeps its rates: load them with its own state, after the scheduler was made, because that sets rates.
  // A ValueError says which key is missing or has an impossible value; nothing is changed then. Other keys do not
  // matter.
  void load_state_dict(const c10::IValue& state);
  // Adds to each group of an optimizer's state dict (checkpoint::state_dict(optimizer)) what Python's schedulers keep
  // there: initial_lr, and for OneCycleLR the ends of its rates and momenta. Python's OneCycleLR cannot go on without
  // them.
  void add_to_groups(const c10::IValue& optimizer_state) const;

 protected:
  // `name` is the class, for messages. `parts` are the schedulers that this one combines.
  LRScheduler(torch::optim::Optimizer& optimizer, std::string name,
              std::vector<std::shared_ptr<LRScheduler>> parts = {});

  // Makes a member of this object an entry of its state dict. For constructors.
  void keep(const char* key, double& member) { kept_.push_back({key, &member}); }
  void keep(const char* key, std::int64_t& member) { kept_.push_back({key, &member}); }
  // The same for one of lengths().
  void keep_length(const char* key, std::int64_t& member) {
    keep(key, member);
    lengths_.push_back(&member);
  }

  // Sets the rates of the first epoch. The constructor of each schedule calls it at its end.
  void initial_step();

  // The rate of one group at last_epoch(), which is new, from the one that it has.
  virtual double next_lr(std::size_t group, double present) const = 0;
  // The same without the present rate: SequentialLR begins its later schedules with it. By default next_lr().
  virtual double closed_form_lr(std::size_t group, double present) const { return next_lr(group, present); }
  // Throws when the schedule does not go as far as `epoch`. Called before anything changes.
  virtual void check_epoch(std::int64_t) const {}
  // Called after the rates were set.
  virtual void set_momenta() {}
  // Throws for impossible values of the constructor's arguments or of the entries of a state dict.
  virtual void check() const {}
  // Entries of a state dict that are no members to keep(). load() throws for impossible values; its object is then
  // given its former state.
  virtual void save(SchedulerState&) const {}
  virtual void load(const SchedulerState&) {}
  // Entries of a group in an optimizer's state dict, beside initial_lr.
  virtual void save_group(std::size_t, SchedulerState&) const {}

  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  const std::vector<std::shared_ptr<LRScheduler>>& parts() const { return parts_; }
  bool is_initial() const { return is_initial_; }
  // The rate that a group began with.
  double base_lr(std::size_t group) const { return base_lrs_[group]; }
  std::size_t group_count() const { return optimizer_.param_groups().size(); }
  // Replaces the first rates, for this scheduler and those that are made later.
  void set_initial_lrs(const std::vector<double>& rates);
  // Goes to `epoch` and sets its rates.
  void go_to(std::int64_t epoch, bool closed_form = false);

 private:
  friend class ChainedScheduler;
  friend class SequentialLR;

  // Takes back the initial step of each schedule in it; the rates stay.
  void undo_initial_step();
  void check_groups() const;
  void read(const c10::IValue& value);
  // The rates that the optimizer has.
  std::vector<double> present_lrs() const;

  struct Kept {
    const char* key;
    std::variant<double*, std::int64_t*> member;
  };

  torch::optim::Optimizer& optimizer_;
  std::string name_;
  std::vector<Kept> kept_;
  std::vector<const std::int64_t*> lengths_;
  std::vector<std::shared_ptr<LRScheduler>> parts_;
  std::shared_ptr<InitialRates> initial_;
  std::vector<double> base_lrs_;
  std::vector<double> last_lr_;
  std::int64_t last_epoch_ = -1;
  std::int64_t step_count_ = 0;
  bool is_initial_ = false;
};

// One schedule after the other: schedulers[i + 1] takes over at milestones[i], counted in steps of this one, from its
// own beginning. Do not step the parts.
class SequentialLR final : public LRScheduler {
 public:
  // The milestones ascend; there is one less than schedulers. All schedulers must be of `optimizer`. Only the first may
  // be a SequentialLR or ChainedScheduler.
  SequentialLR(torch::optim::Optimizer& optimizer, std::vector<std::shared_ptr<LRScheduler>> schedulers,
               std::vector<std::int64_t> milestones);
  void step() override;

 private:
  double next_lr(std::size_t, double present) const override { return present; }
  void save(SchedulerState& state) const override;
  void load(const SchedulerState& state) override;
  void check_milestones() const;
  // The part that sets the rates of an epoch.
  std::size_t part_at(std::int64_t epoch) const;

  std::vector<std::int64_t> milestones_;
};

// Steps all its schedulers, in their order.
class ChainedScheduler final : public LRScheduler {
 public:
  // All of them must be of one optimizer.
  explicit ChainedScheduler(const std::vector<std::shared_ptr<LRScheduler>>& schedulers);
  void step() override;

 private:
  double next_lr(std::size_t, double present) const override { return present; }
  void load(const SchedulerState& state) override;
};

}  // namespace lockstep::optim
