#include "lockstep/c10d/object_codec.h"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <sstream>

#include "lockstep/base/shown_model.h"

namespace lockstep::object_codec {
namespace {

// Archives move tensors to one device, or back to that of the sender, which may be another rank's.
torch::Device common_device(const std::vector<torch::Tensor>& tensors) {
  if (tensors.empty()) return torch::kCPU;
  const torch::Device first = tensors.front().device();
  const bool all = std::all_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.device() == first; });
  return all ? first : torch::Device(torch::kCPU);
}

torch::serialize::InputArchive open(const std::string& bytes, torch::Device device) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream, device);
  return archive;
}

// A tensor of the module. Loading gives it other memory; `before` is what it had.
struct Value {
  std::string name;
  torch::Tensor tensor;
  torch::Tensor before;
};

std::vector<Value> values_of(const torch::nn::Module& module) {
  std::vector<Value> values;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined()) values.push_back({item.key(), item.value(), item.value().detach()});
    }
  };
  add(with_present_tensors(module).named_parameters());
  add(module.named_buffers());
  return values;
}

void check_shapes(const std::vector<Value>& values) {
  for (const Value& value : values) {
    TORCH_CHECK_VALUE(value.tensor.sizes() == value.before.sizes(), "object: '", value.name, "' has shape ",
                      value.before.sizes(), " here, but ", value.tensor.sizes(),
                      " on the sender; the modules must have the same structure");
  }
}

// The tensors of an optimizer's state for one parameter can be reached only by saving and loading.
void move(torch::optim::OptimizerParamState& state, torch::Device device) {
  torch::serialize::OutputArchive output;
  state.serialize(output);
  std::ostringstream stream;
  output.save_to(stream);
  torch::serialize::InputArchive input = open(stream.str(), device);
  state.serialize(input);
}

}  // namespace

void load(torch::nn::Module& module, const std::string& bytes) {
  const torch::NoGradGuard no_grad;
  std::vector<Value> values = values_of(module);
  std::vector<torch::Tensor> tensors;
  for (const Value& value : values) tensors.push_back(value.tensor);
  torch::serialize::InputArchive archive = open(bytes, common_device(tensors));
  const auto give_back = [&] {
    for (Value& value : values) value.tensor.set_data(value.before);
  };
  try {
    module.load(archive);
    check_shapes(values);
  } catch (...) {
    give_back();
    throw;
  }
  for (Value& value : values) value.before.copy_(value.tensor);
  give_back();
}

void load(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  std::vector<torch::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  torch::serialize::InputArchive archive = open(bytes, common_device(parameters));
  optimizer.load(archive);
  if (common_device(parameters) != torch::kCPU) return;
  for (const torch::Tensor& parameter : parameters) {
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (state != optimizer.state().end() && !parameter.is_cpu()) move(*state->second, parameter.device());
  }
}

}  // namespace lockstep::object_codec
