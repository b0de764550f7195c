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
#include "value_text.h"

namespace lockstep::checkpoint {
namespace {

using torch::optim::LRScheduler;
using Plateau = torch::optim::ReduceLROnPlateauScheduler;

constexpr const char* kType = "scheduler.type";
constexpr const char* kState = "scheduler.state";

// A protected member: a derived class may name it.
struct Steps : LRScheduler {
  static constexpr unsigned LRScheduler::*kMember = &Steps::step_count_;
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

c10::IValue python_scheduler(const TensorFile& file) {
  if (const auto state = file.metadata.find(kState); state != file.metadata.end()) {
    return in_context(kState, [&] { return value_of_text(state->second); });
  }
  c10::impl::GenericDict state(c10::AnyType::get(), c10::AnyType::get());
  if (const auto type = file.metadata.find(kType); type != file.metadata.end() && type->second == kPlateauType) {
    constexpr float kNone = std::numeric_limits<float>::max();  // LibTorch's best metric before the first
    const auto best = number<float>(file, "scheduler.best");
    state.insert("best", std::abs(best) == kNone ? std::copysign(HUGE_VAL, best) : double{best});
    state.insert("num_bad_epochs", std::int64_t{number<int>(file, "scheduler.bad_epochs")});
    state.insert("cooldown_counter", std::int64_t{number<int>(file, "scheduler.cooldown")});
    state.insert("last_epoch", std::int64_t{number<int>(file, "scheduler.epoch")});
    return state;
  }
  // Python makes a step in the constructor, LibTorch does not: its next step is that of epoch step_count_.
  const std::int64_t steps = number<unsigned>(file, "scheduler.steps");
  state.insert("last_epoch", steps - 1);
  state.insert("_step_count", steps);
  return state;
}

}  // namespace lockstep::checkpoint
