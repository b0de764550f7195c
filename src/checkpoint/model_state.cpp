#include "model_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "error_context.h"
#include "lockstep/checkpoint/errors.h"
#include "tensor_rules.h"

namespace lockstep::checkpoint {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

constexpr std::string_view kModel = "model.";
constexpr std::string_view kWrapper = "module.";

// Wrappers put "module." in front of every name. If only some names begin with it, the model has a submodule of that
// name, and it stays.
Tensors without_wrapper(Tensors tensors) {
  const auto wrapped = [](const auto& entry) { return entry.first.starts_with(kWrapper); };
  while (!tensors.empty() && std::all_of(tensors.begin(), tensors.end(), wrapped)) {
    Tensors shorter;
    for (auto& [name, tensor] : tensors) shorter[name.substr(kWrapper.size())] = std::move(tensor);
    tensors = std::move(shorter);
  }
  return tensors;
}

Tensors tensors_of(const torch::nn::Module& model) {
  Tensors tensors;
  for (const auto& entry : model.named_parameters()) tensors[entry.key()] = entry.value();
  for (const auto& entry : model.named_buffers()) tensors[entry.key()] = entry.value();
  std::erase_if(tensors, [](const auto& entry) { return !entry.second.defined(); });
  return without_wrapper(std::move(tensors));
}

Tensors model_tensors(const TensorFile& file) {
  Tensors tensors;
  for (auto entry = file.tensors.lower_bound(std::string(kModel));
       entry != file.tensors.end() && entry->first.starts_with(kModel); ++entry) {
    tensors[entry->first.substr(kModel.size())] = entry->second;
  }
  return without_wrapper(std::move(tensors));
}

// The differences between the saved tensors and the model; empty when they fit.
std::string differences(const Tensors& saved, const Tensors& model) {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> shapes;
  std::vector<std::string> dtypes;
  for (const auto& [name, tensor] : model) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      missing.push_back(name);
    } else if (found->second.sizes() != tensor.sizes()) {
      shapes.push_back(fmt::format("{} is [{}] in the file and [{}] in the model", name,
                                   fmt::join(found->second.sizes(), ", "), fmt::join(tensor.sizes(), ", ")));
    } else if (found->second.is_complex() && !tensor.is_complex()) {  // LibTorch would drop the imaginary parts
      dtypes.push_back(fmt::format("{} is {} in the file and {} in the model", name,
                                   c10::toString(found->second.scalar_type()), c10::toString(tensor.scalar_type())));
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (!model.contains(name)) unexpected.push_back(name);
  }
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back(fmt::format("missing in the file: {}", fmt::join(missing, ", ")));
  if (!unexpected.empty()) parts.push_back(fmt::format("unexpected in the file: {}", fmt::join(unexpected, ", ")));
  if (!shapes.empty()) parts.push_back(fmt::format("different shapes: {}", fmt::join(shapes, ", ")));
  if (!dtypes.empty()) parts.push_back(fmt::format("dtypes that do not fit: {}", fmt::join(dtypes, ", ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

// The reasons why tensors cannot be saved or overwritten; empty when there are none.
template <typename Rule>
std::string reasons(const Tensors& tensors, Rule rule) {
  std::vector<std::string> found;
  for (const auto& [name, tensor] : tensors) {
    if (const std::string reason = rule(tensor); !reason.empty()) found.push_back(fmt::format("{} {}", name, reason));
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

void require_restorable(const Tensors& saved, const Tensors& targets) {
  if (const std::string reason = reasons(saved, why_not_saved); !reason.empty()) {
    throw CheckpointError(ErrorCode::kUnsupported, fmt::format("its model cannot be read: {}", reason));
  }
  if (const std::string problem = differences(saved, targets); !problem.empty()) {
    throw CheckpointError(ErrorCode::kMismatch, fmt::format("it is of another model: {}", problem));
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

}  // namespace

void add_model(TensorFile& file, const torch::nn::Module& model) {
  for (auto& [name, tensor] : tensors_of(model)) file.tensors[std::string(kModel) + name] = tensor.detach();
}

void restore_model(const TensorFile& file, torch::nn::Module& model) {
  const Tensors saved = model_tensors(file);
  const Tensors targets = tensors_of(model);
  require_restorable(saved, targets);
  const torch::NoGradGuard no_grad;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;
  for (const auto& [name, target] : targets) {
    copies.emplace_back(target, in_context(name, [&] { return converted(saved.at(name), target); }));
  }
  for (const auto& [target, values] : copies) target.copy_(values);
}

}  // namespace lockstep::checkpoint
