// The weights that a model begins with: of any state dict, or of a checkpoint of another training.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "checkpoint/state/wrappers.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "trainer/command/command_parts.h"
#include "trainer/command/model_file.h"
#include "trainer/saved_parts.h"

namespace lockstep::trainer_detail {
namespace {

struct Weights {
  checkpoint::StateDict state;
  std::string classes = {};  // text_of_classes() of the training that has saved them; empty: not known
  bool are_averages = false;
};

// The text_of_classes() of a checkpoint or of the file of a trained model; empty: the file has none.
std::string saved_classes(const std::string& path) {
  try {
    const auto metadata = checkpoint::read_tensor_file_metadata(path);
    for (const std::string& name : {std::string("value.") + kClassesValue, std::string(kModelClasses)}) {
      if (const auto found = metadata.find(name); found != metadata.end()) return found->second;
    }
  } catch (const checkpoint::CheckpointError&) {  // of torch.save, or several files
  }
  return "";
}

// The file in a folder: the newest of a folder of checkpoints, the model in the folder of a run. A folder with an index
// of several files stays, and so does a distributed checkpoint, which read_state_dict() refuses with advice. Throws for
// other folders.
std::string file_of(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) return path;
  std::string newest;
  bool stays = false;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().native();
    if (name.starts_with("step-") && name.ends_with(".ckpt")) newest = std::max(newest, name);
    stays = stays || name.ends_with(".index.json") || name == ".metadata";
  }
  if (!newest.empty()) return fs::path(path) / newest;
  const fs::path model = fs::path(path) / kModelName;
  if (fs::exists(model)) return model;
  if (stays) return path;
  throw std::runtime_error(
      fmt::format("{}: expected a file, or the folder of a run (with {}), of checkpoints (step-NUMBER.ckpt) or with "
                  "an index of several files (NAME.index.json); this folder has none of these: name the file in it",
                  printable(path), kModelName));
}

// The state dict in a file that may hold more. `entry`: model.weights_key; without it the only usual one there is,
// which it is set to.
checkpoint::StateDict read_entry(const std::string& path, std::string& entry) {
  try {
    return checkpoint::read_state_dict(path, torch::kCPU, entry);
  } catch (const checkpoint::CheckpointError& error) {
    if (!entry.empty() || error.code() != ErrorCode::kMismatch) throw;
    std::optional<checkpoint::StateDict> found;
    for (const char* usual : {"state_dict", "model", "model_state_dict"}) {
      try {
        checkpoint::StateDict state = checkpoint::read_state_dict(path, torch::kCPU, usual);
        if (found) {
          throw std::runtime_error(fmt::format(
              "{}: '{}' and '{}' are state dicts; set model.weights_key to one of them", path, entry, usual));
        }
        found = std::move(state);
        entry = usual;
      } catch (const checkpoint::CheckpointError&) {  // not there, or no state dict
      }
    }
    if (found) return *std::move(found);
    const std::string text = error.what();
    if (text.find("Name the entry") == std::string::npos) throw;  // a list or a tensor has no entries
    throw std::runtime_error(text + "; the key model.weights_key names it");
  }
}

// A checkpoint of a Trainer holds more than the model; its generators tell it from a state dict. Averages are what its
// evaluations have judged, so they take the place of the values that they are averages of.
Weights read_weights(const std::string& path, std::string& entry, const torch::nn::Module& model) {
  const checkpoint::StateDict state = read_entry(path, entry);
  if (!state.contains("generator.cpu")) return {checkpoint::without_wrappers(state), saved_classes(path)};
  Weights weights{checkpoint::strip_prefix(state, "model."), saved_classes(path)};
  std::map<std::string, torch::Tensor> averages;
  for (const auto& entry : checkpoint::strip_prefix(state, fmt::format("tensors.{}.", kAverages)))
    averages.emplace(entry.key(), entry.value());
  for (const auto& entry : averaged_state(model, averages)) {
    if (torch::Tensor* const value = weights.state.find(entry.key())) *value = entry.value();
  }
  weights.are_averages = !averages.empty();
  return weights;
}

// Whether a tensor has other rows, and is the same otherwise: a layer that gives scores has a row for each class.
bool differ_in_rows(const torch::Tensor* a, const torch::Tensor* b) {
  return a != nullptr && b != nullptr && a->dim() >= 1 && a->dim() == b->dim() &&
         a->sizes().slice(1) == b->sizes().slice(1) && a->is_complex() == b->is_complex();
}

// The layer whose tensors alone do not fit, because they have other rows; empty: more than that differs, or nothing.
// "fc" of "fc.weight is [1000, 512] in the file and [3, 512] in the model".
std::string only_other_layer(const checkpoint::IncompatibleKeys& keys, const checkpoint::StateDict& model,
                             const checkpoint::StateDict& file) {
  if (!keys.missing_keys.empty() || !keys.unexpected_keys.empty()) return "";
  std::set<std::string> layers;
  for (const std::string& text : keys.mismatched) {
    const std::string name = text.substr(0, text.find(' '));
    if (!differ_in_rows(model.find(name), file.find(name))) return "";
    layers.insert(name.substr(0, name.rfind('.')));
  }
  return layers.size() == 1 ? *layers.begin() : "";
}

}  // namespace

std::string load_weights(torch::nn::Module& model, const TrainCommandOptions& options,
                         const std::vector<std::string>& classes) {
  std::string entry = options.weights_key;
  const std::string path = with_key("model.weights", [&] { return file_of(options.weights); });
  const Weights weights = with_key(options.weights_key.empty() ? "model.weights" : "model.weights_key",
                                   [&] { return read_weights(path, entry, model); });
  std::string advice;
  try {
    const auto left_out = checkpoint::load_state_dict(model, weights.state, /*strict=*/false);
    const std::string layer = only_other_layer(left_out, checkpoint::state_dict(model), weights.state);
    if (!layer.empty() && options.new_head) {
      return fmt::format("model.weights: all but '{}', which starts from new weights: {}", layer,
                         fmt::join(left_out.mismatched, ", "));
    }
    if (!layer.empty())
      advice = fmt::format("; with model.new_head: true the layer '{}' starts from new weights", layer);
    // Throws, with a list of all that does not fit.
    if (!left_out.empty()) checkpoint::load_state_dict(model, weights.state);
  } catch (const checkpoint::CheckpointError& error) {
    throw std::runtime_error(fmt::format("model.weights: {}: {}{}", path, error.what(), advice));
  }
  std::vector<std::string> notes;
  if (path != options.weights) notes.push_back("from " + path);
  if (entry != options.weights_key) notes.push_back(fmt::format("of the file's entry '{}'", entry));
  if (weights.are_averages)
    notes.emplace_back("the averages of that training (trainer.ema_decay), as it was judged by them");
  if (options.new_head) notes.emplace_back("all layers fit, so model.new_head leaves none out");
  // Often as meant, so not an error: only the layer that gives the scores has to learn.
  const std::string other = weights.classes.empty() ? ""
                                                    : first_other_name({"in the checkpoint", weights.classes},
                                                                       {"in this training", text_of_classes(classes)});
  if (!other.empty()) notes.push_back(other);
  return notes.empty() ? "" : fmt::format("model.weights: {}", fmt::join(notes, "; "));
}

}  // namespace lockstep::trainer_detail
