#include "lockstep/checkpoint/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "number_text.h"
#include "optimizer_state.h"
#include "scheduler_state.h"

namespace lockstep::checkpoint {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

constexpr std::string_view kModel = "model.";
constexpr std::string_view kValue = "value.";
constexpr std::string_view kWrapper = "module.";
constexpr const char* kGenerator = "generator.cpu";

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
  for (const auto& [name, tensor] : model) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      missing.push_back(name);
    } else if (found->second.sizes() != tensor.sizes()) {
      shapes.push_back(fmt::format("{} is [{}] in the file and [{}] in the model", name,
                                   fmt::join(found->second.sizes(), ", "), fmt::join(tensor.sizes(), ", ")));
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (!model.contains(name)) unexpected.push_back(name);
  }
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back(fmt::format("missing in the file: {}", fmt::join(missing, ", ")));
  if (!unexpected.empty()) parts.push_back(fmt::format("unexpected in the file: {}", fmt::join(unexpected, ", ")));
  if (!shapes.empty()) parts.push_back(fmt::format("different shapes: {}", fmt::join(shapes, ", ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

void Checkpoint::add_model(const torch::nn::Module& model) {
  for (auto& [name, tensor] : tensors_of(model)) file_.tensors[std::string(kModel) + name] = tensor.detach();
}

void Checkpoint::restore_model(torch::nn::Module& model) const {
  const Tensors saved = model_tensors(file_);
  const Tensors targets = tensors_of(model);
  const std::string problem = differences(saved, targets);
  if (!problem.empty()) {
    throw CheckpointError(ErrorCode::kMismatch, fmt::format("{} is of another model: {}", origin_, problem));
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, target] : targets) target.copy_(saved.at(name));
}

void Checkpoint::add_optimizer(const torch::optim::Optimizer& optimizer) {
  checkpoint::add_optimizer(file_, optimizer);
}

template <typename Restore>
void Checkpoint::restore(Restore&& run) const {
  try {
    run();
  } catch (const CheckpointError& error) {
    throw CheckpointError(error.code(), fmt::format("{}: {}", origin_, error.what()));
  }
}

void Checkpoint::restore_optimizer(torch::optim::Optimizer& optimizer) const {
  restore([&] { checkpoint::restore_optimizer(file_, optimizer); });
}

void Checkpoint::add_scheduler(const torch::optim::LRScheduler& scheduler) {
  checkpoint::add_scheduler(file_, scheduler);
}
void Checkpoint::add_scheduler(const torch::optim::ReduceLROnPlateauScheduler& scheduler) {
  checkpoint::add_scheduler(file_, scheduler);
}

void Checkpoint::restore_scheduler(torch::optim::LRScheduler& scheduler) const {
  restore([&] { checkpoint::restore_scheduler(file_, scheduler); });
}
void Checkpoint::restore_scheduler(torch::optim::ReduceLROnPlateauScheduler& scheduler) const {
  restore([&] { checkpoint::restore_scheduler(file_, scheduler); });
}

void Checkpoint::add_generator() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  file_.tensors[kGenerator] = generator.get_state();
}

void Checkpoint::restore_generator() const {
  const auto saved = file_.tensors.find(kGenerator);
  if (saved == file_.tensors.end()) {
    throw CheckpointError(ErrorCode::kNotFound, fmt::format("{} holds no state of the random generator", origin_));
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  try {
    generator.set_state(saved->second);
  } catch (const c10::Error& error) {
    throw CheckpointError(ErrorCode::kCorrupt, fmt::format("{}: its state of the random generator is not valid: {}",
                                                           origin_, error.what_without_backtrace()));
  }
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
  for (auto& [name, tensor] : copy.file_.tensors) tensor = tensor.clone();
  return copy;
}

Checkpoint Checkpoint::load(const std::filesystem::path& path) {
  Checkpoint checkpoint;
  checkpoint.file_ = read_tensor_file(path);
  checkpoint.origin_ = path.native();
  return checkpoint;
}

}  // namespace lockstep::checkpoint
