#include "trainer/command/model_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/printable.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "trainer/saved_parts.h"

namespace lockstep::trainer_detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "lockstep.config";
constexpr const char* kInput = "lockstep.input";
constexpr const char* kTrainingInput = "lockstep.training_input";

// The keys as a YAML file. Their values are the defaults of a schema that is made now.
std::string config_text(TrainCommandOptions options) {
  config::Schema schema;
  declare_model_file(options, schema);
  std::map<std::string, std::string> sections;
  for (const config::Key& key : schema.keys()) {
    if (key.is_in_file()) sections[key.section()] += fmt::format("  {}: {}\n", key.name(), key.default_text());
  }
  std::string text;
  for (const auto& [section, keys] : sections) text += section + ":\n" + keys;
  return text;
}

std::vector<std::int64_t> numbers_of(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::int64_t> numbers;
  for (std::int64_t number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

[[noreturn]] void refuse(const std::string& why) {
  throw std::runtime_error(
      fmt::format("{}; expected the file {} that `lockstep train` writes into the folder of a run, or this folder", why,
                  kModelName));
}

}  // namespace

std::map<std::string, std::string> model_metadata(TrainCommandOptions options, const std::vector<std::string>& classes,
                                                  const torch::Tensor& training_sample, const torch::Tensor& sample,
                                                  std::int64_t test_batch_size) {
  options.test_batch_size = test_batch_size;
  if (options.test_transforms.empty() && options.format != DataFormat::kMnist) {
    options.test_transforms = options.transforms;
  }
  return {{kConfig, config_text(std::move(options))},
          {kModelClasses, text_of_classes(classes)},
          {kInput, fmt::format("{}", fmt::join(sample.sizes(), " "))},
          {kTrainingInput, fmt::format("{}", fmt::join(training_sample.sizes(), " "))}};
}

TrainedModel read_trained_model(const fs::path& path) {
  std::error_code ignored;
  TrainedModel model;
  model.path = fs::is_directory(path, ignored) ? path / kModelName : path;
  try {
    // In one go: a training may replace the file meanwhile.
    checkpoint::TensorFile file = checkpoint::read_tensor_file(model.path);
    model.metadata = std::move(file.metadata);
    for (auto& [name, tensor] : file.tensors) model.state.insert(name, std::move(tensor));
  } catch (const checkpoint::CheckpointError& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    refuse(error.what());
  }
  for (const char* name : {kConfig, kModelClasses, kInput, kTrainingInput, "lockstep.epochs"}) {
    if (!model.metadata.contains(name)) refuse(fmt::format("{} has no entry {}", printable(model.path), name));
  }
  config::Schema schema;
  declare_model_file(model.options, schema);
  schema.set_text(model.metadata[kConfig]);
  if (const Status read = schema.read({.file = model.path}); !read.ok()) throw std::runtime_error(read.message());
  std::istringstream lines(model.metadata[kModelClasses]);
  for (std::string name; std::getline(lines, name);) model.classes.push_back(name);
  model.input = numbers_of(model.metadata[kInput]);
  model.training_input = numbers_of(model.metadata[kTrainingInput]);
  if (model.classes.empty() || model.input.size() < 3 || model.training_input.size() < 3) {
    refuse(fmt::format("{} has no classes, or no shape of a sample", printable(model.path)));
  }
  return model;
}

TrainCommandModel make_trained_model(const TrainedModel& file, const TrainCommandOptions& options) {
  TrainCommandData data;
  data.classes = file.classes;
  TrainCommandModel made = make_model(options, data, torch::zeros(file.training_input));
  try {
    checkpoint::load_state_dict(*made.model, file.state);
  } catch (const checkpoint::CheckpointError& error) {
    throw std::runtime_error(fmt::format("{}: {}", printable(file.path), error.what()));
  }
  made.model->eval();
  return made;
}

}  // namespace lockstep::trainer_detail
