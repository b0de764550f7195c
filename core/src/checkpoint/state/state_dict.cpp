#include "lockstep/checkpoint/state_dict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/printable.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_kind.h"
#include "checkpoint/file/tensor_rules.h"
#include "checkpoint/state/wrappers.h"
#include "lockstep/base/shown_model.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::array<std::string_view, 2> kWrappers = {"module.", "_orig_mod."};

// Older state dicts lack the count of batches, which batch normalisation has since PyTorch 0.4.1. Then the module keeps
// its count, as in Python.
bool may_be_missing(const std::string& name, const StateDict& saved) {
  constexpr std::string_view kCount = "num_batches_tracked";
  if (!name.ends_with(kCount)) return false;
  return saved.contains(name.substr(0, name.size() - kCount.size()) + "running_mean");
}

IncompatibleKeys compare(const StateDict& saved, const StateDict& model) {
  IncompatibleKeys found;
  for (const auto& entry : model) {
    const torch::Tensor* value = saved.find(entry.key());
    if (value == nullptr) {
      if (!may_be_missing(entry.key(), saved)) found.missing_keys.push_back(entry.key());
    } else if (value->sizes() != entry->sizes()) {
      found.mismatched.push_back(fmt::format("{} is [{}] in the file and [{}] in the model", entry.key(),
                                             fmt::join(value->sizes(), ", "), fmt::join(entry->sizes(), ", ")));
    } else if (value->is_complex() && !entry->is_complex()) {  // LibTorch would drop the imaginary parts
      found.mismatched.push_back(fmt::format("{} is {} in the file and {} in the model", entry.key(),
                                             c10::toString(value->scalar_type()), c10::toString(entry->scalar_type())));
    }
  }
  for (const auto& entry : saved) {
    if (!model.contains(entry.key()) && !is_extra_state(entry.key())) found.unexpected_keys.push_back(entry.key());
  }
  return found;
}

// A name for a message: that of a file may be long, and hold anything.
std::string printable_key(std::string_view name) {
  constexpr std::size_t kMost = 80;
  return printable(name.substr(0, kMost)) + (name.size() > kMost ? "..." : "");
}

std::string describe_keys(const IncompatibleKeys& keys) {
  std::vector<std::string> parts;
  const auto add = [&](std::string_view what, std::vector<std::string> names, std::string (*shown)(std::string_view)) {
    constexpr std::size_t kShown = 8;  // another model has hundreds
    const std::size_t more = names.size() > kShown ? names.size() - kShown : 0;
    names.resize(names.size() - more);
    if (names.empty()) return;
    std::transform(names.begin(), names.end(), names.begin(), shown);
    parts.push_back(fmt::format("{}: {}", what, fmt::join(names, ", ")));
    if (more > 0) parts.back() += fmt::format(" and {} more", more);
  };
  add("missing in the file", keys.missing_keys, printable_key);
  add("unexpected in the file", keys.unexpected_keys, printable_key);
  add("different shapes or dtypes", keys.mismatched, printable);  // names that the model has too, and then the shapes
  return fmt::format("{}", fmt::join(parts, "; "));
}

// The reasons why tensors cannot be saved or overwritten; empty when there are none.
template <typename Rule>
std::string reasons(const StateDict& tensors, Rule rule) {
  std::vector<std::string> found;
  for (const auto& entry : tensors) {
    if (const std::string reason = rule(*entry); !reason.empty()) found.push_back(entry.key() + " " + reason);
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

void require_loadable(const StateDict& saved, const StateDict& targets) {
  if (const std::string reason = reasons(saved, why_not_saved); !reason.empty()) {
    throw CheckpointError(ErrorCode::kUnsupported, fmt::format("its model cannot be read: {}", reason));
  }
  if (const std::string reason = reasons(targets, why_not_overwritten); !reason.empty()) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          fmt::format("the program's model cannot be overwritten: {}", reason));
  }
}

// `saved` with the dtype and on the device of `target`, in memory of its own: copying it to `target` cannot fail.
torch::Tensor converted(const torch::Tensor& saved, const torch::Tensor& target) {
  const torch::Tensor values = saved.to(target.device(), target.scalar_type());
  return values.is_alias_of(target) ? values.clone() : values;
}

bool fits(const torch::Tensor* saved, const torch::Tensor& target) {
  return saved != nullptr && saved->sizes() == target.sizes() && (!saved->is_complex() || target.is_complex());
}

}  // namespace

StateDict without_wrappers(StateDict state) {
  while (!state.is_empty()) {
    const auto wrapper = std::find_if(kWrappers.begin(), kWrappers.end(), [&](std::string_view prefix) {
      return std::all_of(state.begin(), state.end(),
                         [&](const auto& entry) { return entry.key().starts_with(prefix); });
    });
    if (wrapper == kWrappers.end()) break;
    state = strip_prefix(state, *wrapper);
  }
  return state;
}

StateDict state_dict(const torch::nn::Module& model) {
  StateDict state;
  for (const auto& entry : with_present_tensors(model).named_parameters()) {
    if (entry->defined()) state.insert(entry.key(), entry->detach());
  }
  for (const auto& entry : model.named_buffers()) {
    if (entry->defined()) state.insert(entry.key(), entry->detach());
  }
  return without_wrappers(std::move(state));
}

IncompatibleKeys load_state_dict(torch::nn::Module& model, const StateDict& state, bool strict) {
  const StateDict targets = state_dict(model);
  const StateDict saved = without_wrappers(state);
  IncompatibleKeys found = compare(saved, targets);
  const bool nothing_fits =
      found.missing_keys.size() + found.mismatched.size() >= targets.size() && !targets.is_empty();
  if (!found.empty() && (strict || nothing_fits)) {
    throw CheckpointError(ErrorCode::kMismatch, fmt::format("it is of another model: {}", describe_keys(found)));
  }
  StateDict used;
  for (const auto& entry : targets) {
    if (const torch::Tensor* value = saved.find(entry.key()); fits(value, *entry)) used.insert(entry.key(), *value);
  }
  require_loadable(used, targets);
  const torch::NoGradGuard no_grad;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;
  for (const auto& entry : used) {
    const torch::Tensor& target = targets[entry.key()];
    copies.emplace_back(target, in_context(entry.key(), [&] { return converted(*entry, target); }));
  }
  for (const auto& [target, values] : copies) target.copy_(values);
  return found;
}

StateDict add_prefix(const StateDict& state, std::string_view prefix) {
  StateDict longer;
  for (const auto& entry : state) longer.insert(std::string(prefix) + entry.key(), *entry);
  return longer;
}

StateDict strip_prefix(const StateDict& state, std::string_view prefix) {
  StateDict shorter;
  for (const auto& entry : state) {
    if (entry.key().starts_with(prefix)) shorter.insert(entry.key().substr(prefix.size()), *entry);
  }
  return shorter;
}

StateDict to(const StateDict& state, torch::ScalarType dtype) {
  StateDict converted;
  for (const auto& entry : state) {
    converted.insert(entry.key(), entry->is_floating_point() ? entry->to(dtype) : *entry);
  }
  return converted;
}

}  // namespace lockstep::checkpoint
