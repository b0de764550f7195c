#include "lockstep/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include "base/number_text.h"
#include "error_context.h"
#include "generator_states.h"
#include "model_state.h"
#include "optimizer_state.h"
#include "scheduler_state.h"
#include "tensor_rules.h"
#include "text_of.h"
#include "value_text.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kValue = "value.";

// "tensors.ema.": in front of the names of a program's own tensors.
std::string prefix_of(std::string_view name) {
  return fmt::format("tensors.{}.", name);
}

}  // namespace

void Checkpoint::add_model(const torch::nn::Module& model) {
  checkpoint::add_model(file_, model);
}

void Checkpoint::restore_model(torch::nn::Module& model) const {
  in_context(origin_, [&] { checkpoint::restore_model(file_, model); });
}

void Checkpoint::add_optimizer(const torch::optim::Optimizer& optimizer) {
  checkpoint::add_optimizer(file_, optimizer);
}

void Checkpoint::restore_optimizer(torch::optim::Optimizer& optimizer) const {
  in_context(origin_, [&] { checkpoint::restore_optimizer(file_, optimizer); });
}

void Checkpoint::add_scheduler(const torch::optim::LRScheduler& scheduler) {
  checkpoint::add_scheduler(file_, scheduler);
}
void Checkpoint::add_scheduler(const torch::optim::ReduceLROnPlateauScheduler& scheduler) {
  checkpoint::add_scheduler(file_, scheduler);
}

void Checkpoint::restore_scheduler(torch::optim::LRScheduler& scheduler) const {
  in_context(origin_, [&] { checkpoint::restore_scheduler(file_, scheduler); });
}
void Checkpoint::restore_scheduler(torch::optim::ReduceLROnPlateauScheduler& scheduler) const {
  in_context(origin_, [&] { checkpoint::restore_scheduler(file_, scheduler); });
}

void Checkpoint::add_scheduler_state(const std::type_info& type, const c10::IValue& state) {
  checkpoint::add_scheduler(file_, type, state);
}

c10::IValue Checkpoint::scheduler_state(const std::type_info& type) const {
  return in_context(origin_, [&] { return checkpoint::scheduler_state(file_, type); });
}

void Checkpoint::add_generators(std::span<const at::Tensor> states, torch::DeviceType type) {
  checkpoint::add_generators(file_, states, type);
}

void Checkpoint::restore_generator(torch::Device device) const {
  in_context(origin_, [&] { checkpoint::restore_generator(file_, device); });
}

void Checkpoint::add_tensors(std::string_view name, const std::map<std::string, at::Tensor>& tensors) {
  for (const auto& [part, tensor] : tensors) file_.tensors[prefix_of(name) + part] = tensor;
}

std::map<std::string, at::Tensor> Checkpoint::get_tensors(std::string_view name) const {
  const std::string prefix = prefix_of(name);
  std::map<std::string, at::Tensor> tensors;
  for (auto entry = file_.tensors.lower_bound(prefix); entry != file_.tensors.end() && entry->first.starts_with(prefix);
       ++entry) {
    tensors.emplace(entry->first.substr(prefix.size()), entry->second);
  }
  if (!tensors.empty()) return tensors;
  throw CheckpointError(ErrorCode::kNotFound, fmt::format("{} holds no tensors \"{}\"", origin_, name));
}

void Checkpoint::set(std::string_view name, std::int64_t value) {
  set(name, std::string_view(text_of(value)));
}
void Checkpoint::set(std::string_view name, double value) {
  set(name, std::string_view(text_of(value)));
}
void Checkpoint::set(std::string_view name, std::string_view value) {
  file_.metadata[std::string(kValue).append(name)] = value;
}

bool Checkpoint::has(std::string_view name) const {
  return file_.metadata.contains(std::string(kValue).append(name));
}

std::string Checkpoint::get_text(std::string_view name) const {
  const auto found = file_.metadata.find(std::string(kValue).append(name));
  if (found != file_.metadata.end()) return found->second;
  throw CheckpointError(ErrorCode::kNotFound, fmt::format("{} holds no value \"{}\"", origin_, name));
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
  const std::string text = in_context(fmt::format("value \"{}\"", name), [&] { return text_of_value(value); });
  set(name, std::string_view(text));
}

c10::IValue Checkpoint::get_value(std::string_view name) const {
  return in_context(fmt::format("{}: value \"{}\"", origin_, name), [&] { return value_of_text(get_text(name)); });
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
  Checkpoint checkpoint;
  checkpoint.file_ = read_tensor_file(path);
  checkpoint.origin_ = path.native();
  return checkpoint;
}

}  // namespace lockstep::checkpoint
