// The weights that a model begins with: of any state dict, or of a checkpoint of another training.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <stdexcept>
#include <string>

#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "trainer/job/job_parts.h"

namespace lockstep::trainer_detail {
namespace {

// A checkpoint of a Trainer holds more than the model; its generators tell it from a state dict.
checkpoint::StateDict read_weights(const std::string& path) {
  const checkpoint::StateDict state = checkpoint::read_state_dict(path);
  return state.contains("generator.cpu") ? checkpoint::strip_prefix(state, "model.") : state;
}

// The layer whose tensors alone do not fit, because their shapes differ; empty: more than that differs, or nothing.
// "fc" of "fc.weight is [1000, 512] in the file and [3, 512] in the model".
std::string only_other_layer(const checkpoint::IncompatibleKeys& keys) {
  if (!keys.missing_keys.empty() || !keys.unexpected_keys.empty()) return "";
  std::set<std::string> layers;
  for (const std::string& text : keys.mismatched) {
    const std::string name = text.substr(0, text.find(' '));
    layers.insert(name.substr(0, name.rfind('.')));
  }
  return layers.size() == 1 ? *layers.begin() : "";
}

}  // namespace

std::string load_weights(torch::nn::Module& model, const JobOptions& options) {
  const std::string& path = options.weights;
  const checkpoint::StateDict weights = with_key("model.weights", [&] { return read_weights(path); });
  std::string advice;
  try {
    const auto left_out = checkpoint::load_state_dict(model, weights, /*strict=*/false);
    const std::string layer = only_other_layer(left_out);
    if (!layer.empty() && options.new_head) {
      return fmt::format("model.weights: all but '{}', which starts from new weights: {}", layer,
                         fmt::join(left_out.mismatched, ", "));
    }
    if (!layer.empty())
      advice = fmt::format("; with model.new_head: true the layer '{}' starts from new weights", layer);
    if (!left_out.empty()) checkpoint::load_state_dict(model, weights);  // throws, with a list of all that does not fit
  } catch (const checkpoint::CheckpointError& error) {
    throw std::runtime_error(fmt::format("model.weights: {}: {}{}", path, error.what(), advice));
  }
  return "";
}

}  // namespace lockstep::trainer_detail
