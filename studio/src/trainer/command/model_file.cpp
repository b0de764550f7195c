#include "trainer/command/model_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/printable.h"
#include "c10d/backend/group_errors.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/trainer/model_library.h"
#include "lockstep/trainer/trainer.h"
#include "trainer/saved_parts.h"

namespace lockstep::trainer_detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "lockstep.config";
constexpr const char* kInput = "lockstep.input";
constexpr const char* kTrainingInput = "lockstep.training_input";

TrainCommandPrecision precision_of(TrainingPrecision precision) {
  switch (precision) {
    case TrainingPrecision::kBFloat16: return TrainCommandPrecision::kBFloat16;
    case TrainingPrecision::kFloat16: return TrainCommandPrecision::kFloat16;
    default: return TrainCommandPrecision::kFloat32;
  }
}

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

[[noreturn]] void refuse(const std::string& why) {
  throw std::runtime_error(why);
}

// The sizes of a sample, [channels, height, width].
std::vector<std::int64_t> sizes_of(const std::map<std::string, std::string>& metadata, const char* entry) {
  constexpr std::int64_t kMostValues = std::int64_t{1} << 28;  // 1 GiB; the largest pictures have some millions
  const std::string& text = metadata.at(entry);
  std::istringstream words(text);
  std::vector<std::int64_t> sizes;
  std::int64_t values = 1;
  bool good = true;
  for (std::string word; good && words >> word;) {
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), size);
    good = error == std::errc() && end == word.data() + word.size() && size >= 1 && size <= kMostValues / values;
    values *= good ? size : 1;
    sizes.push_back(size);
  }
  if (good && (sizes.size() == 3 || sizes.size() == 4)) return sizes;
  refuse(fmt::format("{} is '{}', expected three or four sizes such as '3 224 224', of at most {} values", entry,
                     printable(text.substr(0, 80)), kMostValues));
}

void check_classes(const std::vector<std::string>& classes) {
  std::set<std::string> seen;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::string& name = classes[i];
    const char* fault = name.empty()                ? "is empty"
                        : printable(name) != name   ? "has characters that are not printable"
                        : !seen.insert(name).second ? "has the name of another"
                                                    : nullptr;
    if (fault == nullptr) continue;
    refuse(fmt::format("{}: class {}, '{}', {}", kModelClasses, i, printable(name.substr(0, 80)), fault));
  }
  if (classes.empty()) refuse(fmt::format("{} has no class", kModelClasses));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// What the metadata says of the model. `model.path` is where an error of a key is.
void read_metadata(TrainedModel& model) {
  for (const char* name : {kConfig, kModelClasses, kInput, kTrainingInput}) {
    if (!model.metadata.contains(name)) refuse(fmt::format("has no entry {}", name));
  }
  config::Schema schema;
  declare_model_file(model.options, schema);
  schema.set_text(model.metadata[kConfig]);
  if (const Status read = schema.read({.file = model.path}); !read.ok()) throw std::runtime_error(read.message());
  model.classes = lines_of(model.metadata[kModelClasses]);
  check_classes(model.classes);
  model.input = sizes_of(model.metadata, kInput);
  model.training_input = sizes_of(model.metadata, kTrainingInput);
}

// load_state_dict() converts, but whole numbers in the place of others are not a training's weights.
void check_dtypes(const torch::nn::Module& model, const checkpoint::StateDict& saved) {
  const auto kind = [](torch::ScalarType dtype) {
    return c10::isFloatingType(dtype) ? 0 : c10::isComplexType(dtype) ? 1 : 2;
  };
  for (const auto& entry : checkpoint::state_dict(model)) {
    const torch::Tensor* found = saved.find(entry.key());
    if (found == nullptr || kind(found->scalar_type()) == kind(entry->scalar_type())) continue;
    throw std::runtime_error(fmt::format("{} is {} in the file, and {} in the model", printable(entry.key()),
                                         c10::toString(found->scalar_type()), c10::toString(entry->scalar_type())));
  }
}

}  // namespace

std::map<std::string, std::string> model_metadata(TrainCommandOptions options, const std::vector<std::string>& classes,
                                                  at::IntArrayRef training_sample, at::IntArrayRef sample,
                                                  std::int64_t test_batch_size) {
  options.test_batch_size = test_batch_size;
  if (options.test_transforms.empty() && options.format != DataFormat::kMnist && options.format != DataFormat::kFake) {
    options.test_transforms = options.transforms;
  }
  return {{kConfig, config_text(std::move(options))},
          {kModelClasses, text_of_classes(classes)},
          {kInput, fmt::format("{}", fmt::join(sample, " "))},
          {kTrainingInput, fmt::format("{}", fmt::join(training_sample, " "))}};
}

std::string text_of_parts(const TrainCommandData& data) {
  return fmt::format("{} {}", data.train->size(), data.test->size());
}

TrainedModel read_trained_model(const fs::path& path) {
  std::error_code ignored;
  TrainedModel model;
  model.path = fs::is_directory(path, ignored) ? path / kModelName : path;
  const auto refuse_file = [](const std::string& why) {
    refuse(fmt::format("{}; expected the file {} that `lockstep train` writes into the folder of a run, or this folder",
                       why, kModelName));
  };
  try {
    // In one go: a training may replace the file meanwhile.
    checkpoint::TensorFile file = checkpoint::read_tensor_file(model.path);
    model.metadata = std::move(file.metadata);
    for (auto& [name, tensor] : file.tensors) model.state.insert(name, std::move(tensor));
  } catch (const checkpoint::CheckpointError& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    refuse_file(error.what());
  }
  try {
    read_metadata(model);
  } catch (const std::exception& error) {
    refuse_file(fmt::format("{}: {}", printable(model.path), error.what()));
  }
  if (!model.metadata.contains("lockstep.epochs")) {
    refuse_file(fmt::format("{} has no entry lockstep.epochs", printable(model.path)));
  }
  return model;
}

TrainCommandModel make_trained_model(const TrainedModel& file, const TrainCommandOptions& options) {
  TrainCommandData data;
  data.classes = file.classes;
  try {
    TrainCommandModel made = make_model(options, data, torch::zeros(file.training_input));
    check_dtypes(*made.model, file.state);
    checkpoint::load_state_dict(*made.model, file.state);
    made.model->eval();
    return made;
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("{}: {}", printable(file.path), plain_text(error)));
  }
}

}  // namespace lockstep::trainer_detail

namespace lockstep {

std::map<std::string, std::string> custom_model_metadata(const CustomModelUse& use) try {
  trainer_detail::check_classes(use.classes);  // before they become lines of a text
  TORCH_CHECK_VALUE(use.test_batch_size >= 1, "test_batch_size must be at least 1, got ", use.test_batch_size);
  trainer_detail::TrainCommandOptions options;
  options.model = "custom";
  options.model_options = use.options;
  options.test_transforms = use.test_transforms;
  options.precision = trainer_detail::precision_of(use.precision);
  options.shared_object = "given by --shared-object";  // a custom model must have one; the file does not name it
  const Status wrong = trainer_detail::check_use_of_model(options);
  TORCH_CHECK_VALUE(wrong.ok(), wrong.message());
  trainer_detail::TrainedModel model;
  model.metadata = trainer_detail::model_metadata(options, use.classes, use.input, use.input, use.test_batch_size);
  trainer_detail::read_metadata(model);
  return model.metadata;
} catch (const std::exception& error) {
  C10_THROW_ERROR(ValueError, "custom_model_metadata: " + plain_text(error));
}

}  // namespace lockstep
