#include "module_state.h"

#include <c10/util/Type.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "nn/check_parameter.h"
#include "packed_buffers.h"

namespace lockstep::nn_detail {
namespace {

// Parameters and buffers are sent in blocks of about this size.
constexpr std::size_t kBlockBytes = std::size_t{32} << 20;

std::string shape_of(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << ' ' << tensor.sizes();
  // Gradients are summed in the order of memory: all ranks need the same strides (channels-last or not).
  if (tensor.layout() != torch::kStrided) {
    text << ' ' << tensor.layout();
  } else if (!tensor.is_contiguous()) {
    text << " strides " << tensor.strides();
  }
  return text.str();
}

// Whether the module has parameters or buffers, and each rank has its own.
bool is_ignored(const torch::nn::Module& module, const std::string& prefix, const std::set<std::string>& ignored) {
  if (ignored.empty()) return false;  // names take time
  const auto is_own = [&](const auto& item) { return ignored.contains(prefix + item.key()); };
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  return parameters.size() + buffers.size() > 0 && std::all_of(parameters.begin(), parameters.end(), is_own) &&
         std::all_of(buffers.begin(), buffers.end(), is_own);
}

void add_children(std::string& text, const torch::nn::Module& module, const std::string& prefix,
                  const std::set<std::string>& ignored) {
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    if (!child.value() || is_ignored(*child.value(), name + ".", ignored)) continue;
    const torch::nn::Module& found = *child.value();
    text += fmt::format("module '{}': {}\n", name, c10::demangle(typeid(found).name()));
    add_children(text, found, name + ".", ignored);
  }
}

std::vector<NamedParameter> all_tensors(const torch::nn::Module& module) {
  std::vector<NamedParameter> all;
  for (const auto& item : module.named_parameters()) all.push_back({item.key(), item.value()});
  for (const auto& item : module.named_buffers()) all.push_back({item.key(), item.value()});
  return all;
}

}  // namespace

std::set<std::string> names_to_ignore(const torch::nn::Module& module, const std::vector<IgnoredTensor>& ignored) {
  std::set<std::string> names;
  if (ignored.empty()) return names;
  const std::vector<NamedParameter> all = all_tensors(module);
  const auto add_all_names_of = [&](const torch::Tensor& tensor) {
    bool found = false;
    for (const NamedParameter& one : all) {
      if (!one.tensor.is_same(tensor)) continue;
      names.insert(one.name);
      found = true;
    }
    return found;
  };
  for (std::size_t i = 0; i < ignored.size(); ++i) {
    if (ignored[i].name.empty()) {
      TORCH_CHECK_VALUE(ignored[i].tensor.defined() && add_all_names_of(ignored[i].tensor), "ignored_parameters[", i,
                        "]: this tensor is no parameter and no buffer of the module");
      continue;
    }
    const auto named =
        std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == ignored[i].name; });
    TORCH_CHECK_VALUE(named != all.end(), "ignored_parameters: the module has no parameter and no buffer '",
                      ignored[i].name, "'; names are those of named_parameters() and named_buffers()",
                      all.empty() ? "" : ", such as '" + all.front().name + "'");
    add_all_names_of(named->tensor);
  }
  return names;
}

SharedState shared_state(const torch::nn::Module& module, const std::set<std::string>& ignored) {
  SharedState state;
  for (const auto& item : module.named_parameters()) {
    if (!ignored.contains(item.key())) state.parameters.push_back({item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers()) {
    if (!ignored.contains(item.key())) state.buffers.push_back({item.key(), item.value()});
  }
  return state;
}

SharedState sent_state(const torch::nn::Module& module, const std::set<std::string>& ignored,
                       const DistributedDataParallelOptions& options) {
  SharedState state = shared_state(module, ignored);
  if (!options.broadcast_buffers) state.buffers.clear();
  return state;
}

std::vector<NamedParameter> trainable(const SharedState& state) {
  std::vector<NamedParameter> result;
  std::unordered_set<const void*> seen;
  for (const NamedParameter& parameter : state.parameters) {
    if (!parameter.tensor.requires_grad() || !seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) continue;
    result.push_back(parameter);
  }
  return result;
}

bool any_trained(const std::vector<torch::Tensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& one) { return one.requires_grad(); });
}

torch::Device trained_device(const std::vector<NamedParameter>& parameters) {
  std::optional<torch::Device> device;
  for (const NamedParameter& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    check_parameter(parameter);
    if (!device) device = parameter.tensor.device();
    TORCH_CHECK_VALUE(parameter.tensor.device() == *device, "parameter '", parameter.name, "' is on ",
                      parameter.tensor.device(), ", others are on ", *device, "; all parameters must be on one device");
  }
  TORCH_CHECK_VALUE(device,
                    "this model has no parameter that requires a gradient, so there is nothing to synchronise; use it "
                    "without DistributedDataParallel, or set requires_grad before wrapping it");
  return *device;
}

std::string describe(const SharedState& state, const DistributedDataParallelOptions& options) {
  std::string text = fmt::format("option bucket_cap_mb: {}\n", options.bucket_cap_mb);
  text += fmt::format("option static_graph: {}\n", options.static_graph);
  text += fmt::format("option broadcast_buffers: {}\n", options.broadcast_buffers);
  text += fmt::format("option init_sync: {}\n", options.init_sync);
  std::unordered_map<const void*, std::string> first_names;
  for (const NamedParameter& parameter : state.parameters) {
    check_parameter(parameter);
    const auto [first, is_new] = first_names.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
    text += fmt::format("parameter '{}': {}{}{}\n", parameter.name, shape_of(parameter.tensor),
                        parameter.tensor.requires_grad() ? "" : ", frozen",
                        is_new ? "" : fmt::format(", shared with '{}'", first->second));
  }
  for (const NamedParameter& buffer : state.buffers) {
    TORCH_CHECK_VALUE(!options.broadcast_buffers || buffer.tensor.layout() == torch::kStrided, "buffer '", buffer.name,
                      "' is ", buffer.tensor.layout(),
                      ", and only dense ones can be sent; name it in ignored_parameters, so that each rank keeps its "
                      "own, or set broadcast_buffers to false");
    TORCH_CHECK_VALUE(!buffer.tensor.is_meta(), "buffer '", buffer.name, "' ", kOnMeta);
    text += fmt::format("buffer '{}': {}\n", buffer.name, shape_of(buffer.tensor));
  }
  return text;
}

std::string describe_types(const torch::nn::Module& module, const std::set<std::string>& ignored) {
  std::string text = fmt::format("module: {}\n", c10::demangle(typeid(module).name()));
  add_children(text, module, "", ignored);
  return text;
}

void broadcast_state(const SharedState& state, const DeviceBackend& backend, int source) {
  std::vector<NamedParameter> block;
  std::size_t bytes = 0;
  const auto send = [&] {
    PackedBuffers packed(backend, std::exchange(block, {}));
    packed.start(source);
    packed.finish();
    bytes = 0;
  };
  const auto add = [&](const NamedParameter& one) {
    if (!one.tensor.defined()) return;
    block.push_back({one.name, one.tensor.detach()});
    bytes += one.tensor.nbytes();
    if (bytes >= kBlockBytes) send();
  };
  for (const NamedParameter& parameter : state.parameters) add(parameter);
  for (const NamedParameter& buffer : state.buffers) add(buffer);
  send();
}

}  // namespace lockstep::nn_detail
