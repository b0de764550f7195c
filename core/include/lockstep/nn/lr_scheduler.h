// Learning rate schedulers: the base class, and SequentialLR, which combines others. lr_schedules.h has the schedules.
//
//   auto warmup = std::make_shared<optim::LinearLR>(optimizer, optim::LinearLROptions{.start_factor = 0.1});
//   auto cosine = std::make_shared<optim::CosineAnnealingLR>(optimizer, epochs - 5);
//   optim::SequentialLR scheduler(optimizer, {warmup, cosine}, {5});
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     train(optimizer);
//     scheduler.step();
//   }
//
// Names, rules, defaults and rates are those of torch.optim.lr_scheduler, the rates bit for bit. The constructor sets
// the rates of the first epoch, and each step() sets the rates of the next epoch. LibTorch's own torch::optim::StepLR
// is one step behind Python's. Several schedulers of one optimizer may be stepped one after the other; each changes the
// rates that the one before has set.
//
// Several schedulers of one optimizer share its first rates, as with Python's group["initial_lr"]. The first rates are
// the optimizer's rates when the first scheduler is made. Loading a scheduler's state replaces them by the saved ones,
// unless a later OneCycleLR has set first rates of its own. They are kept until the last scheduler is gone.
//
// A scheduler changes the groups of its optimizer and sends nothing: call step() on every rank, as optimizer.step(). A
// scheduler keeps a reference to its optimizer, which must live longer. The number of groups must not change. Not
// thread-safe. Wrong arguments are ValueErrors (c10::ValueError) that name them.
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

  // Sets the rates of the next epoch (or of the next batch, if the schedule counts batches). Call it after the
  // optimizer's steps of the present epoch.
  virtual void step();

  // The rates that the last step() has set, by parameter group.
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  // How often step() was called. Below 0 for a part of a SequentialLR that has not begun.
  std::int64_t last_epoch() const { return last_epoch_; }
  // The constructor's arguments that a program computes from the length of its training (t_max, total_iters,
  // total_steps), and the same arguments of all parts. Loading a state dict replaces these arguments. Empty: the
  // schedule has no end.
  std::vector<std::int64_t> lengths() const;
  // Whether the constructor, or the constructor of a part, takes rates as arguments, such as OneCycleLR's peak. A state
  // dict does not hold such rates.
  virtual bool has_own_rates() const;

  // Returns what Python's scheduler.state_dict() returns: a dict of numbers, lists and dicts with the same keys, which
  // Python's load_state_dict() takes. The present rates and momenta are not in it: they belong to the optimizer.
  c10::IValue state_dict() const;
  // Loads a state of this class from C++ or Python, with the arguments of the constructor, as in Python. The rates are
  // not in it: load the optimizer's own state too, after the scheduler was made, because the constructor sets rates.
  // A ValueError says which key is missing or has an impossible value; nothing is changed then. Unknown keys are
  // ignored.
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
  // The same for an argument that lengths() returns.
  void keep_length(const char* key, std::int64_t& member) {
    keep(key, member);
    lengths_.push_back(&member);
  }

  // Sets the rates of the first epoch. The constructor of each schedule calls it at its end.
  void initial_step();

  // Returns the group's rate at epoch last_epoch(), computed from its present rate.
  virtual double next_lr(std::size_t group, double present) const = 0;
  // Returns the same rate without use of the present rate: SequentialLR begins its later schedules in this way. By
  // default next_lr().
  virtual double closed_form_lr(std::size_t group, double present) const { return next_lr(group, present); }
  // Throws if the schedule ends before `epoch`. Called before anything changes.
  virtual void check_epoch(std::int64_t) const {}
  // Called after the rates were set.
  virtual void set_momenta() {}
  // Throws for impossible values of the constructor's arguments or of the entries of a state dict.
  virtual void check() const {}
  // Save and load the entries of a state dict that are no members registered by keep(). load() throws for impossible
  // values; the object then gets its former state back.
  virtual void save(SchedulerState&) const {}
  virtual void load(const SchedulerState&) {}
  // Entries of a group in an optimizer's state dict, beside initial_lr.
  virtual void save_group(std::size_t, SchedulerState&) const {}

  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  const std::vector<std::shared_ptr<LRScheduler>>& parts() const { return parts_; }
  bool is_initial() const { return is_initial_; }
  // The group's first rate.
  double base_lr(std::size_t group) const { return base_lrs_[group]; }
  std::size_t group_count() const { return optimizer_.param_groups().size(); }
  // Replaces the first rates, for this scheduler and for schedulers that are made later.
  void set_initial_lrs(const std::vector<double>& rates);
  // Goes to `epoch` and sets its rates.
  void go_to(std::int64_t epoch, bool closed_form = false);

 private:
  friend class SequentialLR;

  // Takes back the initial step of this scheduler and of its parts; the rates stay.
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
  std::int64_t initial_replacements_;  // of the first rates that this scheduler has
  std::vector<double> base_lrs_;
  std::vector<double> last_lr_;
  std::int64_t last_epoch_ = -1;
  std::int64_t step_count_ = 0;
  bool is_initial_ = false;
};

// One schedule after the other: schedulers[i + 1] takes over at milestones[i], and starts from its own beginning.
// Milestones count steps of the SequentialLR. Do not step the parts.
class SequentialLR final : public LRScheduler {
 public:
  // The milestones ascend; there is one milestone fewer than there are schedulers. All schedulers must be of
  // `optimizer`. Only the first may be a SequentialLR.
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

}  // namespace lockstep::optim
