#include "saved_parts.h"

#include <fmt/format.h>

#include <optional>
#include <sstream>

#include "base/printable.h"

namespace lockstep::trainer_detail {
namespace {

// For a message: a name of a checkpoint may be long, and hold anything.
std::string printable_name(const std::optional<std::string>& name) {
  constexpr std::size_t kMost = 80;
  if (!name) return "missing";
  return fmt::format("'{}{}'", printable(name->substr(0, kMost)), name->size() > kMost ? "..." : "");
}

}  // namespace

checkpoint::StateDict averaged_state(const torch::nn::Module& model,
                                     const std::map<std::string, torch::Tensor>& averages) {
  checkpoint::StateDict state;
  for (const auto& [name, average] : averages) state.insert(name, average);
  std::map<const void*, std::string> first_names;
  for (const auto& item : model.named_parameters()) {
    const auto [first, is_new] = first_names.emplace(item.value().unsafeGetTensorImpl(), item.key());
    const auto average = averages.find(first->second);
    if (!is_new && average != averages.end() && !state.contains(item.key())) state.insert(item.key(), average->second);
  }
  return state;
}

// Names of folders may be any bytes, but checkpoints hold UTF-8.
std::string text_of_classes(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += printable(name) + "\n";
  return text;
}

std::string text_of_trained(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer) {
  std::map<const void*, std::string> names;
  for (const auto& item : model.named_parameters()) names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  std::vector<std::string> trained;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& tensor : group.params()) trained.push_back(names[tensor.unsafeGetTensorImpl()]);
  }
  return text_of_classes(trained);
}

std::string first_other_name(const NamedLines& one, const NamedLines& other, const std::string& what) {
  std::istringstream one_lines(one.text);
  std::istringstream other_lines(other.text);
  const auto next = [](std::istringstream& lines) {
    std::string name;
    return std::getline(lines, name) ? std::optional(name) : std::nullopt;
  };
  for (int number = 0; one_lines && other_lines; ++number) {
    const std::optional<std::string> first = next(one_lines);
    const std::optional<std::string> second = next(other_lines);
    if (first != second) {
      return fmt::format("{} {} is {} {}, and {} {}", what, number, printable_name(first), one.where,
                         printable_name(second), other.where);
    }
  }
  return "";
}

}  // namespace lockstep::trainer_detail
