// LibTorch's learning rate schedulers in checkpoints, as named values:
//
//   scheduler.type    "torch::optim::StepLR"
//   scheduler.steps   how often step() was called (an LRScheduler)
//   scheduler.best, .bad_epochs, .cooldown, .epoch   (ReduceLROnPlateauScheduler)
//   scheduler.state   the state dict, as in value_text.h (any other class)
//
// The learning rates themselves are saved with the optimizer.
#include <c10/util/Type.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "base/number_text.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/interchange/optimizer_dict.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "value_text.h"

namespace lockstep::checkpoint {
namespace {

using torch::optim::LRScheduler;
using Plateau = torch::optim::ReduceLROnPlateauScheduler;

using StepLR = torch::optim::StepLR;
using Dict = c10::impl::GenericDict;

constexpr const char* kType = "scheduler.type";
constexpr const char* kState = "scheduler.state";

// Protected members: a derived class may name them.
struct Steps : LRScheduler {
  static constexpr unsigned LRScheduler::*kMember = &Steps::step_count_;
  static constexpr auto kRates = &Steps::get_current_lrs;
};

// The state of LibTorch's schedulers is private, and LibTorch cannot save it. The compiler does not check access
// in the arguments of an explicit instantiation: the instantiations below name the members, and a friend function
// returns them.
template <typename Field, typename Field::Member member>
struct Reveal {
  friend typename Field::Member reveal(Field) { return member; }
};
struct Best {
  using Member = float Plateau::*;
  friend Member reveal(Best);
};
struct BadEpochs {
  using Member = int Plateau::*;
  friend Member reveal(BadEpochs);
};
struct Cooldown {
  using Member = int Plateau::*;
  friend Member reveal(Cooldown);
};
struct Epoch {
  using Member = int Plateau::*;
  friend Member reveal(Epoch);
};
struct StepSize {
  using Member = const unsigned StepLR::*;
  friend Member reveal(StepSize);
};
struct Gamma {
  using Member = const double StepLR::*;
  friend Member reveal(Gamma);
};
template struct Reveal<StepSize, &StepLR::step_size_>;
template struct Reveal<Gamma, &StepLR::gamma_>;
template struct Reveal<Best, &Plateau::best>;
template struct Reveal<BadEpochs, &Plateau::num_bad_epochs>;
template struct Reveal<Cooldown, &Plateau::cooldown_counter>;
template struct Reveal<Epoch, &Plateau::last_epoch>;

// Of the scheduler that was added before nothing stays.
void begin(TensorFile& file, std::string type) {
  std::erase_if(file.metadata, [](const auto& entry) { return entry.first.starts_with("scheduler."); });
  file.metadata[kType] = std::move(type);
}

std::string type_of(const LRScheduler& scheduler) {
  return c10::demangle(typeid(scheduler).name());
}
constexpr const char* kPlateauType = "torch::optim::ReduceLROnPlateauScheduler";

void require_type(const TensorFile& file, const std::string& type) {
  const auto saved = file.metadata.find(kType);
  if (saved == file.metadata.end()) throw CheckpointError(ErrorCode::kMismatch, "it holds no scheduler");
  if (saved->second == type) return;
  throw CheckpointError(ErrorCode::kMismatch,
                        fmt::format("its scheduler is a {:.200}, the program's a {}: make the same scheduler before "
                                    "restoring",
                                    saved->second, type));
}

// Infinity is the best metric before the first.
template <typename T, typename Stored>
bool fits(Stored value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isinf(value) || std::abs(value) <= std::numeric_limits<T>::max();
  } else {
    return value >= 0 && value <= std::numeric_limits<int>::max();
  }
}

template <typename T>
T number(const TensorFile& file, const std::string& name) {
  using Stored = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  const auto found = file.metadata.find(name);
  const auto value = found == file.metadata.end() ? std::nullopt : number_from_text<Stored>(found->second);
  if (value && fits<T>(*value)) return static_cast<T>(*value);
  throw CheckpointError(ErrorCode::kCorrupt, fmt::format("expected a number as {}, found {:.100}", name,
                                                         found == file.metadata.end() ? "nothing" : found->second));
}

// An entry of Python's scheduler.state_dict(): a number, or a tensor of one, as a metric may be.
double real_number(const c10::IValue& state, const char* key) {
  if (!state.isGenericDict() || !state.toGenericDict().contains(key)) {
    throw CheckpointError(ErrorCode::kMismatch, fmt::format("it is no scheduler's state: \"{}\" is missing", key));
  }
  const c10::IValue value = state.toGenericDict().at(key);
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isDouble()) return value.toDouble();
  if (value.isTensor() && value.toTensor().numel() == 1) return value.toTensor().item<double>();
  throw CheckpointError(ErrorCode::kCorrupt, fmt::format("\"{}\" of its scheduler is no number", key));
}

std::int64_t whole_number(const c10::IValue& state, const char* key, int least) {
  const double value = real_number(state, key);
  constexpr double kMost = std::numeric_limits<int>::max() - 1;
  if (value >= least && value <= kMost && value == std::floor(value)) return static_cast<std::int64_t>(value);
  throw CheckpointError(ErrorCode::kCorrupt, fmt::format("\"{}\" of its scheduler is {}", key, value));
}

void require_same(const c10::IValue& state, const char* key, double now) {
  const double saved = real_number(state, key);
  if (saved == now) return;
  throw CheckpointError(ErrorCode::kMismatch,
                        fmt::format("its scheduler has {} {}, the program's {}: make the same scheduler before loading",
                                    key, saved, now));
}

}  // namespace

void Checkpoint::add_scheduler_state(const void* scheduler, const std::type_info& type, const c10::IValue& state) {
  require_no_other(added_.scheduler, scheduler, "scheduler");
  const std::string text = in_context("the scheduler's state", [&] { return text_of_value(state); });
  begin(file_, c10::demangle(type.name()));
  file_.metadata[kState] = text;
  added_.scheduler = scheduler;
}

c10::IValue Checkpoint::scheduler_state(const std::type_info& type) const {
  return in_context(origin_, [&] {
    require_type(file_, c10::demangle(type.name()));
    const auto state = file_.metadata.find(kState);
    if (state == file_.metadata.end()) throw CheckpointError(ErrorCode::kCorrupt, "it lacks scheduler.state");
    return in_context(kState, [&] { return value_of_text(state->second); });
  });
}

void Checkpoint::add_scheduler(const LRScheduler& scheduler) {
  require_no_other(added_.scheduler, &scheduler, "scheduler");
  begin(file_, type_of(scheduler));
  file_.metadata["scheduler.steps"] = text_of(std::int64_t{scheduler.*Steps::kMember});
  added_.scheduler = &scheduler;
}

void Checkpoint::restore_scheduler(LRScheduler& scheduler) const {
  in_context(origin_, [&] {
    require_type(file_, type_of(scheduler));
    scheduler.*Steps::kMember = number<unsigned>(file_, "scheduler.steps");
  });
}

void Checkpoint::add_scheduler(const Plateau& scheduler) {
  require_no_other(added_.scheduler, &scheduler, "scheduler");
  begin(file_, kPlateauType);
  file_.metadata["scheduler.best"] = text_of(double{scheduler.*reveal(Best())});
  file_.metadata["scheduler.bad_epochs"] = text_of(std::int64_t{scheduler.*reveal(BadEpochs())});
  file_.metadata["scheduler.cooldown"] = text_of(std::int64_t{scheduler.*reveal(Cooldown())});
  file_.metadata["scheduler.epoch"] = text_of(std::int64_t{scheduler.*reveal(Epoch())});
  added_.scheduler = &scheduler;
}

void Checkpoint::restore_scheduler(Plateau& scheduler) const {
  in_context(origin_, [&] {
    require_type(file_, kPlateauType);
    const auto best = number<float>(file_, "scheduler.best");
    const int bad_epochs = number<int>(file_, "scheduler.bad_epochs");
    const int cooldown = number<int>(file_, "scheduler.cooldown");
    const int epoch = number<int>(file_, "scheduler.epoch");
    scheduler.*reveal(Best()) = best;
    scheduler.*reveal(BadEpochs()) = bad_epochs;
    scheduler.*reveal(Cooldown()) = cooldown;
    scheduler.*reveal(Epoch()) = epoch;
  });
}

// --- Python's state_dict()

namespace {

// Python makes a step in the constructor, LibTorch does not: its next step is that of epoch step_count_.
void insert_steps(Dict& state, std::int64_t steps) {
  state.insert("last_epoch", steps - 1);
  state.insert("_step_count", steps);
}

Dict plateau_dict(float best, int bad_epochs, int cooldown, int epoch) {
  constexpr float kNone = std::numeric_limits<float>::max();  // LibTorch's best metric before the first
  Dict state(c10::AnyType::get(), c10::AnyType::get());
  state.insert("best", std::abs(best) == kNone ? std::copysign(HUGE_VAL, best) : double{best});
  state.insert("num_bad_epochs", std::int64_t{bad_epochs});
  state.insert("cooldown_counter", std::int64_t{cooldown});
  state.insert("last_epoch", std::int64_t{epoch});
  return state;
}

}  // namespace

c10::IValue python_scheduler(const TensorFile& file) {
  if (const auto state = file.metadata.find(kState); state != file.metadata.end()) {
    return in_context(kState, [&] { return value_of_text(state->second); });
  }
  if (const auto type = file.metadata.find(kType); type != file.metadata.end() && type->second == kPlateauType) {
    return plateau_dict(number<float>(file, "scheduler.best"), number<int>(file, "scheduler.bad_epochs"),
                        number<int>(file, "scheduler.cooldown"), number<int>(file, "scheduler.epoch"));
  }
  Dict state(c10::AnyType::get(), c10::AnyType::get());
  insert_steps(state, number<unsigned>(file, "scheduler.steps"));
  return state;
}

c10::IValue state_dict(const LRScheduler& scheduler) {
  Dict state(c10::AnyType::get(), c10::AnyType::get());
  if (const auto* step = dynamic_cast<const StepLR*>(&scheduler)) {
    state.insert("step_size", static_cast<std::int64_t>(step->*reveal(StepSize())));
    state.insert("gamma", step->*reveal(Gamma()));
  }
  insert_steps(state, scheduler.*Steps::kMember);
  c10::impl::GenericList rates(c10::AnyType::get());
  for (const double rate : (scheduler.*Steps::kRates)()) rates.push_back(rate);
  state.insert("_last_lr", rates);
  return state;
}

void load_state_dict(LRScheduler& scheduler, const c10::IValue& state) {
  if (const auto* step = dynamic_cast<const StepLR*>(&scheduler)) {
    require_same(state, "step_size", step->*reveal(StepSize()));
    require_same(state, "gamma", step->*reveal(Gamma()));
  }
  const std::int64_t epoch = whole_number(state, "last_epoch", -1);
  scheduler.*Steps::kMember = static_cast<unsigned>(epoch + 1);
}

c10::IValue state_dict(const Plateau& scheduler) {
  return plateau_dict(scheduler.*reveal(Best()), scheduler.*reveal(BadEpochs()), scheduler.*reveal(Cooldown()),
                      scheduler.*reveal(Epoch()));
}

void load_state_dict(Plateau& scheduler, const c10::IValue& state) {
  const double best = real_number(state, "best");
  if (!fits<float>(best)) throw CheckpointError(ErrorCode::kCorrupt, fmt::format("the best metric is {}", best));
  const std::int64_t bad_epochs = whole_number(state, "num_bad_epochs", 0);
  const std::int64_t cooldown = whole_number(state, "cooldown_counter", 0);
  const std::int64_t epoch = whole_number(state, "last_epoch", 0);
  scheduler.*reveal(Best()) = static_cast<float>(best);
  scheduler.*reveal(BadEpochs()) = static_cast<int>(bad_epochs);
  scheduler.*reveal(Cooldown()) = static_cast<int>(cooldown);
  scheduler.*reveal(Epoch()) = static_cast<int>(epoch);
}

}  // namespace lockstep::checkpoint
