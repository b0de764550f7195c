#include "lockstep/nn/lr_scheduler.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>
#include <utility>

#include "lockstep/base/mutex.h"
#include "scheduler_state.h"

namespace lockstep::optim {

// What Python keeps in each group as group["initial_lr"]: LibTorch's groups have no place for it.
struct InitialRates {
  const torch::optim::Optimizer* optimizer = nullptr;
  std::vector<double> rates = {};
  std::int64_t replacements = 0;  // how often a scheduler's own rates have replaced them
};

namespace {

// The rates of an optimizer, for as long as one of its schedulers is there. Groups that they do not know yet begin with
// their present rate. A new optimizer may have the address of a former one whose scheduler is still there. So the rates
// know their optimizer by a number that is its own: the load factor of its table of states, which nobody else uses. The
// numbers follow LibTorch's value closely enough to change nothing. A number that another optimizer has got with the
// table, by a move or a swap, does not count.
std::shared_ptr<InitialRates> initial_rates_of(torch::optim::Optimizer& optimizer) {
  static Mutex mutex;
  static std::map<float, std::weak_ptr<InitialRates>> all;
  static const float unmarked = std::decay_t<decltype(optimizer.state())>().max_load_factor();
  static float newest = unmarked;
  const MutexLock lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& states = optimizer.state();
  const auto known = all.find(states.max_load_factor());
  std::shared_ptr<InitialRates> initial = known == all.end() ? nullptr : known->second.lock();
  if (!initial || initial->optimizer != &optimizer) {
    do {
      newest = newest < 1.5F * unmarked ? std::nextafter(newest, 1.0F) : std::nextafter(unmarked, 1.0F);
    } while (all.contains(newest));
    states.max_load_factor(newest);
    all[newest] = initial = std::make_shared<InitialRates>(InitialRates{.optimizer = &optimizer});
  }
  const auto& groups = optimizer.param_groups();
  for (std::size_t group = initial->rates.size(); group < groups.size(); ++group)
    initial->rates.push_back(groups[group].options().get_lr());
  return initial;
}

}  // namespace

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer, std::string name,
                         std::vector<std::shared_ptr<LRScheduler>> parts)
    : optimizer_(optimizer),
      name_(std::move(name)),
      parts_(std::move(parts)),
      initial_(initial_rates_of(optimizer)),
      initial_replacements_(initial_->replacements),
      base_lrs_(initial_->rates) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    TORCH_CHECK_VALUE(&parts_[i]->optimizer_ == &optimizer_ && parts_[i]->initial_ == initial_, name_, ": scheduler ",
                      i, ", a ", parts_[i]->name_, ", is of another optimizer");
  }
}

void LRScheduler::check_groups() const {
  TORCH_CHECK_VALUE(group_count() == base_lrs_.size(), name_, ": the optimizer has ", group_count(),
                    " parameter groups, but had ", base_lrs_.size(),
                    " when the scheduler was made: make schedulers after the last add_param_group");
}

void LRScheduler::initial_step() {
  check();
  struct Initial {
    explicit Initial(bool& flag) : flag_(flag) { flag_ = true; }
    ~Initial() { flag_ = false; }
    bool& flag_;
  };
  const Initial initial(is_initial_);
  step_count_ = 0;
  step();
}

void LRScheduler::step() {
  check_groups();
  check_epoch(last_epoch_ + 1);
  ++step_count_;
  go_to(last_epoch_ + 1);
}

void LRScheduler::go_to(std::int64_t epoch, bool closed_form) {
  check_groups();
  last_epoch_ = epoch;
  std::vector<double> rates = present_lrs();
  for (std::size_t group = 0; group < rates.size(); ++group)
    rates[group] = closed_form ? closed_form_lr(group, rates[group]) : next_lr(group, rates[group]);
  auto& groups = optimizer_.param_groups();
  for (std::size_t group = 0; group < rates.size(); ++group) groups[group].options().set_lr(rates[group]);
  set_momenta();
  last_lr_ = std::move(rates);
}

std::vector<double> LRScheduler::present_lrs() const {
  std::vector<double> rates = {};
  for (auto& group : optimizer_.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void LRScheduler::undo_initial_step() {
  if (parts_.empty()) --last_epoch_;
  for (const auto& part : parts_) part->undo_initial_step();
}

void LRScheduler::set_initial_lrs(const std::vector<double>& rates) {
  initial_->rates = rates;
  initial_replacements_ = ++initial_->replacements;
  base_lrs_ = rates;
}

std::vector<std::int64_t> LRScheduler::lengths() const {
  std::vector<std::int64_t> all;
  all.reserve(lengths_.size());
  for (const std::int64_t* length : lengths_) all.push_back(*length);
  for (const auto& part : parts_) {
    const std::vector<std::int64_t> more = part->lengths();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

bool LRScheduler::has_own_rates() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->has_own_rates(); });
}

// The keys of Python's objects. Schedulers that combine others keep no rates of their own.
c10::IValue LRScheduler::state_dict() const {
  SchedulerState state(name_);
  for (const Kept& kept : kept_) std::visit([&](const auto* member) { state.put(kept.key, *member); }, kept.member);
  save(state);
  if (parts_.empty()) {
    state.put_list("base_lrs", base_lrs_);
    state.put("last_epoch", last_epoch_);
    state.put("_step_count", step_count_);
    state.put("_is_initial", false);
    state.put("_get_lr_called_within_step", false);
  } else {
    std::vector<c10::IValue> parts;
    parts.reserve(parts_.size());
    for (const auto& part : parts_) parts.push_back(part->state_dict());
    state.put_list("_schedulers", parts);
  }
  state.put_list("_last_lr", last_lr_);
  return state.dict();
}

void LRScheduler::load_state_dict(const c10::IValue& state) {
  const c10::IValue before = state_dict();
  const std::vector<double> initial = initial_->rates;
  try {
    read(state);
  } catch (...) {
    read(before);
    initial_->rates = initial;
    throw;
  }
}

void LRScheduler::read(const c10::IValue& value) {
  const SchedulerState state(name_, value);
  const std::size_t groups = base_lrs_.size();
  const auto rates = [&](const char* key) {
    std::vector<double> found = state.numbers(key);
    TORCH_CHECK_VALUE(found.size() == groups, name_, ": its state has ", found.size(), " rates as \"", key,
                      "\", and the optimizer ", groups, " parameter groups");
    return found;
  };
  last_lr_ = rates("_last_lr");
  if (parts_.empty()) {
    base_lrs_ = rates("base_lrs");
    // In Python the groups' rates come with the optimizer's state: those of the last scheduler that has replaced them.
    if (initial_replacements_ == initial_->replacements)
      std::copy(base_lrs_.begin(), base_lrs_.end(), initial_->rates.begin());
    last_epoch_ = state.integer("last_epoch");
    step_count_ = state.integer("_step_count");
  } else {
    const std::vector<c10::IValue> parts = state.list("_schedulers");
    TORCH_CHECK_VALUE(parts.size() == parts_.size(), name_, ": its state has ", parts.size(),
                      " schedulers, the program ", parts_.size());
    for (std::size_t i = 0; i < parts.size(); ++i) parts_[i]->read(parts[i]);
  }
  for (const Kept& kept : kept_) {
    if (auto* const* const number = std::get_if<double*>(&kept.member)) **number = state.number(kept.key);
    if (auto* const* const whole = std::get_if<std::int64_t*>(&kept.member)) **whole = state.integer(kept.key);
  }
  check();
  load(state);
}

void LRScheduler::add_to_groups(const c10::IValue& optimizer_state) const {
  const SchedulerState state(name_, optimizer_state);
  const std::vector<c10::IValue> groups = state.list("param_groups");
  TORCH_CHECK_VALUE(groups.size() == base_lrs_.size(), name_, ": the optimizer's state has ", groups.size(),
                    " parameter groups, the scheduler ", base_lrs_.size());
  for (std::size_t group = 0; group < groups.size(); ++group) {
    SchedulerState entries(name_, groups[group]);  // a dict is a reference: this adds to the caller's
    entries.put("initial_lr", initial_->rates[group]);
    save_group(group, entries);
  }
  for (const auto& part : parts_) part->add_to_groups(optimizer_state);
}

}  // namespace lockstep::optim
