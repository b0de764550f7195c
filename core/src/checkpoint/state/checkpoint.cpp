#include "lockstep/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/number_text.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/tensor_rules.h"
#include "checkpoint/state/optimizer_state.h"
#include "lockstep/checkpoint/state_dict.h"
#include "value_text.h"

namespace lockstep::checkpoint {
namespace {

// "tensors.ema." is in front of the names of a program's own tensors; "tensors.ema" in the metadata says that "ema" is
// such a name.
constexpr std::string_view kTensors = "tensors.";
// In front of the names of a model's tensors.
constexpr std::string_view kModel = "model.";

std::string prefix_of(std::string_view name) {
  return fmt::format("{}{}.", kTensors, name);
}

// A sharded optimizer makes another one, for the same parameters, each time that it is saved.
const void* first_parameter(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  return groups.empty() || groups[0].params().empty() ? nullptr : groups[0].params()[0].unsafeGetTensorImpl();
}

}  // namespace

void Checkpoint::require_no_other(const void* added, const void* now, const char* what) const {
  if (added == nullptr || added == now) return;
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        fmt::format("{} has another {} already, which this one would overwrite: put each into a "
                                    "checkpoint of its own",
                                    origin_, what));
}

void Checkpoint::add_model(const torch::nn::Module& model) {
  require_no_other(added_.model, &model, "model");
  const StateDict state = state_dict(model);
  std::erase_if(file_.tensors, [](const auto& entry) { return entry.first.starts_with(kModel); });
  for (const auto& entry : state) file_.tensors[std::string(kModel) + entry.key()] = *entry;
  added_.model = &model;  // an error before has added nothing
}

void Checkpoint::restore_model(torch::nn::Module& model) const {
  StateDict saved;
  for (const auto& [name, tensor] : file_.tensors) {
    if (name.starts_with(kModel)) saved.insert(name.substr(kModel.size()), tensor);
  }
  in_context(origin_, [&] { load_state_dict(model, saved); });
}

void Checkpoint::add_optimizer(const torch::optim::Optimizer& optimizer) {
  require_no_other(added_.optimizer, first_parameter(optimizer), "optimizer");
  checkpoint::add_optimizer(file_, optimizer);
  added_.optimizer = first_parameter(optimizer);
}

void Checkpoint::restore_optimizer(torch::optim::Optimizer& optimizer) const {
  in_context(origin_, [&] { checkpoint::restore_optimizer(file_, optimizer); });
}

void Checkpoint::add_tensors(std::string_view name, const std::map<std::string, at::Tensor>& tensors) {
  const std::string prefix = prefix_of(name);
  for (auto entry = file_.metadata.lower_bound(std::string(kTensors));
       entry != file_.metadata.end() && entry->first.starts_with(kTensors); ++entry) {
    const std::string other = entry->first + ".";
    if (other == prefix || !(other.starts_with(prefix) || prefix.starts_with(other))) continue;
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        fmt::format("{} has the tensors \"{}\", which cannot be told from parts of \"{}\": give one of "
                    "them a name that is not the beginning of the other",
                    origin_, entry->first.substr(kTensors.size()), name));
  }
  std::erase_if(file_.tensors, [&](const auto& entry) { return entry.first.starts_with(prefix); });
  file_.metadata[std::string(kTensors).append(name)] = "";
  for (const auto& [part, tensor] : tensors) file_.tensors[prefix + part] = tensor;
}

std::map<std::string, at::Tensor> Checkpoint::get_tensors(std::string_view name) const {
  const std::string prefix = prefix_of(name);
  const auto known = file_.metadata.lower_bound(std::string(kTensors));
  const bool has_names = known != file_.metadata.end() && known->first.starts_with(kTensors);
  std::map<std::string, at::Tensor> tensors;
  for (auto entry = file_.tensors.lower_bound(prefix); entry != file_.tensors.end() && entry->first.starts_with(prefix);
       ++entry) {
    tensors.emplace(entry->first.substr(prefix.size()), entry->second);
  }
  const bool is_name = !has_names || file_.metadata.contains(std::string(kTensors).append(name));
  if (!tensors.empty() && is_name) return tensors;
  throw CheckpointError(ErrorCode::kNotFound, fmt::format("{} holds no tensors \"{}\"", origin_, name));
}

void Checkpoint::set(std::string_view name, std::int64_t value) {
  set_own_value(file_, name, value);
}
void Checkpoint::set(std::string_view name, double value) {
  set_own_value(file_, name, value);
}
void Checkpoint::set(std::string_view name, std::string_view value) {
  set_own_value(file_, name, value);
}

bool Checkpoint::has(std::string_view name) const {
  return file_.metadata.contains(std::string(kValuePrefix).append(name));
}

const std::string& Checkpoint::saved_text(std::string_view name) const {
  const auto found = file_.metadata.find(std::string(kValuePrefix).append(name));
  if (found != file_.metadata.end()) return found->second;
  throw CheckpointError(ErrorCode::kNotFound, fmt::format("{} holds no value \"{}\"", origin_, name));
}

std::string Checkpoint::get_text(std::string_view name) const {
  const std::string& text = saved_text(name);
  return in_context(fmt::format("{}: value \"{}\"", origin_, name), [&] { return own_text(file_, name, text); });
}

std::int64_t Checkpoint::get_int(std::string_view name) const {
  const std::string text = get_text(name);
  if (const auto value = number_from_text<std::int64_t>(text)) return *value;
  throw CheckpointError(ErrorCode::kCorrupt,
                        fmt::format("{}: value \"{}\" is no whole number: {:.100}", origin_, name, text));
}

double Checkpoint::get_double(std::string_view name) const {
  const std::string text = get_text(name);
  if (const auto value = number_from_text<double>(text)) return *value;
  throw CheckpointError(ErrorCode::kCorrupt,
                        fmt::format("{}: value \"{}\" is no number: {:.100}", origin_, name, text));
}

void Checkpoint::set_value(std::string_view name, const c10::IValue& value) {
  in_context(fmt::format("value \"{}\"", name), [&] { set_own_value(file_, name, value); });
}

c10::IValue Checkpoint::get_value(std::string_view name) const {
  const std::string& text = saved_text(name);
  return in_context(fmt::format("{}: value \"{}\"", origin_, name), [&] {
    DictGrowth growth;
    return has_type(file_, name) ? own_value(file_, name, text, growth) : value_of_text(text, growth);
  });
}

std::int64_t Checkpoint::step() const {
  const auto found = file_.metadata.find("step");
  return found == file_.metadata.end() ? 0 : number_from_text<std::int64_t>(found->second).value_or(0);
}

std::optional<double> Checkpoint::metric() const {
  const auto found = file_.metadata.find("metric");
  return found == file_.metadata.end() ? std::nullopt : number_from_text<double>(found->second);
}

Checkpoint Checkpoint::clone() const {
  Checkpoint copy = *this;
  for (auto& entry : copy.file_.tensors) {
    entry.second =
        in_context(fmt::format("{}: tensor \"{}\"", origin_, entry.first), [&] { return entry.second.clone(); });
  }
  in_context(origin_, [&] {
    for (const auto& entry : copy.file_.tensors) wait_for_copy(entry.second);
  });
  return copy;
}

Checkpoint Checkpoint::load(const std::filesystem::path& path) {
  return of(read_tensor_file(path), path.native());
}

Checkpoint Checkpoint::of(TensorFile content, std::string origin) {
  Checkpoint checkpoint;
  checkpoint.file_ = std::move(content);
  checkpoint.origin_ = std::move(origin);
  return checkpoint;
}

}  // namespace lockstep::checkpoint
