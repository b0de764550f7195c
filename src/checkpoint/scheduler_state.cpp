#include "scheduler_state.h"

#include <c10/util/Type.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <typeinfo>

#include "lockstep/checkpoint/errors.h"
#include "number_text.h"

namespace lockstep::checkpoint {
namespace {

using torch::optim::LRScheduler;
using Plateau = torch::optim::ReduceLROnPlateauScheduler;

constexpr const char* kType = "scheduler.type";

struct Steps : LRScheduler {
  static constexpr unsigned LRScheduler::*kMember = &Steps::step_count_;  // protected: a derived class may name it
};

// The state of LibTorch's plateau scheduler is private, and LibTorch cannot save it. The compiler does not check access
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

void add_scheduler(TensorFile& file, const LRScheduler& scheduler) {
  file.metadata[kType] = type_of(scheduler);
  file.metadata["scheduler.steps"] = text_of(std::int64_t{scheduler.*Steps::kMember});
}

void restore_scheduler(const TensorFile& file, LRScheduler& scheduler) {
  require_type(file, type_of(scheduler));
  scheduler.*Steps::kMember = number<unsigned>(file, "scheduler.steps");
}

void add_scheduler(TensorFile& file, const Plateau& scheduler) {
  file.metadata[kType] = kPlateauType;
  file.metadata["scheduler.best"] = text_of(double{scheduler.*reveal(Best())});
  file.metadata["scheduler.bad_epochs"] = text_of(std::int64_t{scheduler.*reveal(BadEpochs())});
  file.metadata["scheduler.cooldown"] = text_of(std::int64_t{scheduler.*reveal(Cooldown())});
  file.metadata["scheduler.epoch"] = text_of(std::int64_t{scheduler.*reveal(Epoch())});
}

void restore_scheduler(const TensorFile& file, Plateau& scheduler) {
  require_type(file, kPlateauType);
  const auto best = number<float>(file, "scheduler.best");
  const int bad_epochs = number<int>(file, "scheduler.bad_epochs");
  const int cooldown = number<int>(file, "scheduler.cooldown");
  const int epoch = number<int>(file, "scheduler.epoch");
  scheduler.*reveal(Best()) = best;
  scheduler.*reveal(BadEpochs()) = bad_epochs;
  scheduler.*reveal(Cooldown()) = cooldown;
  scheduler.*reveal(Epoch()) = epoch;
}

}  // namespace lockstep::checkpoint
