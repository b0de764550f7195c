// convert_sync_batchnorm, which finds the layers and marks their tensors (intercepted_batch_norm.h), and SyncBatchNorm
// itself.
#include <torch/nn/functional/batchnorm.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <unordered_set>

#include "c10d/world/group_watch.h"
#include "intercepted_batch_norm.h"
#include "lockstep/nn/as_module.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "nn/all_ranks.h"
#include "nn/batch_norm/synchronised_batch_norm.h"
#include "nn/owed_meeting.h"

namespace lockstep {
namespace {

using nn_detail::Mark;
using nn_detail::Marks;
using torch::Tensor;

// The tensors of a layer that can carry the mark. Null if `module` is no BatchNorm of LibTorch.
std::optional<std::vector<Tensor>> tensors_of(const torch::nn::Module& module) {
  const auto of = [](const auto* layer) -> std::optional<std::vector<Tensor>> {
    if (layer == nullptr) return std::nullopt;
    std::vector<Tensor> result;
    for (const Tensor& tensor : {layer->weight, layer->running_mean}) {
      if (tensor.defined()) result.push_back(tensor);
    }
    return result;
  };
  if (auto tensors = of(dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module))) return tensors;
  if (auto tensors = of(dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module))) return tensors;
  return of(dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module));
}

// Whether a module that is no class of LibTorch is probably a batch normalisation: it has running statistics.
bool looks_like_batch_norm(const torch::nn::Module& module) {
  const auto buffers = module.named_buffers(/*recurse=*/false);
  if (!buffers.contains("running_mean") || !buffers.contains("running_var")) return false;
  return dynamic_cast<const torch::nn::InstanceNorm1dImpl*>(&module) == nullptr &&
         dynamic_cast<const torch::nn::InstanceNorm2dImpl*>(&module) == nullptr &&
         dynamic_cast<const torch::nn::InstanceNorm3dImpl*>(&module) == nullptr;
}

// Calls visit(module, name) once for the module and for each module inside of it. If visit returns false, skips what is
// inside of that module.
template <typename Module, typename Visit>
void walk(Module& module, const std::string& name, std::unordered_set<const void*>& seen, const Visit& visit) {
  if (!seen.insert(&module).second || !visit(module, name)) return;
  for (const auto& child : module.named_children()) {
    if (child.value()) walk(*child.value(), name.empty() ? child.key() : name + "." + child.key(), seen, visit);
  }
}

struct Layer {
  std::string name;
  std::weak_ptr<torch::nn::Module> module;
  SyncBatchNormImpl* own = nullptr;  // it is one already
  std::vector<Tensor> tensors;       // of a layer to convert
};

constexpr const char* kAdvice = "; put a lockstep::SyncBatchNorm there, or name it in `except` to leave it as it is";

std::vector<Layer> layers_to_convert(torch::nn::Module& module, const std::vector<std::string>& except) {
  std::vector<Layer> layers;
  std::unordered_set<std::string> unmet(except.begin(), except.end());
  std::unordered_set<const void*> seen;
  const bool is_view = dynamic_cast<const nn_detail::ModelView*>(&module) != nullptr;
  walk(module, "", seen, [&](torch::nn::Module& found, const std::string& name) {
    unmet.erase(name);
    if (std::find(except.begin(), except.end(), name) != except.end()) return false;
    if (auto* const own = dynamic_cast<SyncBatchNormImpl*>(&found)) {
      layers.push_back({name, {}, own, {}});
    } else if (const auto tensors = tensors_of(found)) {
      layers.push_back({name, found.weak_from_this(), nullptr, *tensors});
      TORCH_CHECK_VALUE(!tensors->empty(), "convert_sync_batchnorm: '", name,
                        "' has neither affine parameters nor running statistics, so its calls cannot be told from "
                        "others",
                        kAdvice);
    } else {
      TORCH_CHECK_VALUE(!looks_like_batch_norm(found) || !is_view, "convert_sync_batchnorm: '", name,
                        "' is a batch normalisation of a scripted model or another model that is no "
                        "torch::nn::Module (as_module): the model calls it by itself, so it cannot be replaced. Use a "
                        "layer without statistics of the batch (GroupNorm) in the model, give each rank more samples, "
                        "or name the layer in `except` to leave it as it is");
      TORCH_CHECK_VALUE(!looks_like_batch_norm(found), "convert_sync_batchnorm: '", name, "' (", found.name(),
                        ") has running_mean and running_var like a batch normalisation, but is none of LibTorch's, "
                        "which alone can be converted",
                        kAdvice);
    }
    return true;
  });
  TORCH_CHECK_VALUE(unmet.empty(), "convert_sync_batchnorm: `except` names '", *unmet.begin(),
                    "', but there is no such module");
  return layers;
}

}  // namespace

std::vector<std::string> convert_sync_batchnorm(torch::nn::Module& module, const ProcessGroup& group,
                                                const std::vector<std::string>& except, CallSite site) {
  const std::vector<Layer> layers = layers_to_convert(module, except);
  nn_detail::intercept_batch_norm();
  watch_groups([](const ProcessGroup& left) { Marks::get().forget(left); });
  std::vector<std::string> names;
  for (const Layer& layer : layers) {
    names.push_back(layer.name);
    if (layer.own != nullptr) {
      layer.own->options.process_group(group);
      continue;
    }
    const TextNumber label = number_of_label(c10::str("batch normalisation '", layer.name, "'"));
    const auto mark = std::make_shared<const Mark>(Mark{group, layer.module, layer.name, {site, label}});
    for (const Tensor& tensor : layer.tensors) Marks::get().set(tensor, mark);
  }
  return names;
}

std::vector<std::string> sync_batchnorm_layers(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (nn_detail::SynchronisedLayer& layer : nn_detail::synchronised_layers(module))
    names.push_back(std::move(layer.name));
  return names;
}

namespace nn_detail {

std::vector<SynchronisedLayer> synchronised_layers(const torch::nn::Module& module) {
  std::vector<SynchronisedLayer> layers;
  std::unordered_set<const void*> seen;
  walk(module, "", seen, [&](const torch::nn::Module& found, const std::string& name) {
    if (const auto* const own = dynamic_cast<const SyncBatchNormImpl*>(&found)) {
      layers.push_back({name, own->options.process_group(), &found});
    } else if (const auto tensors = tensors_of(found)) {
      for (const Tensor& tensor : *tensors) {
        const std::shared_ptr<const Mark> mark = Marks::get().find(tensor);
        if (mark == nullptr) continue;
        if (!mark->group_was_left) layers.push_back({name, mark->group, &found});
        break;
      }
    }
    return true;
  });
  return layers;
}

}  // namespace nn_detail

void SyncBatchNormImpl::_check_input_dim(const torch::Tensor& input) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "SyncBatchNorm: expected an input (N, C, +), got one of ", input.dim(),
                    " dimensions");
  TORCH_CHECK_VALUE(input.size(1) > 0, "SyncBatchNorm: expected at least one channel, got input size ", input.sizes());
  TORCH_CHECK_VALUE(input.size(1) == options.num_features(), "SyncBatchNorm: expected ", options.num_features(),
                    " channels, got input size ", input.sizes());
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  _check_input_dim(input);
  double momentum = options.momentum().value_or(0.0);
  const bool synchronises = is_training() && nn_detail::has_other_ranks(options.process_group());
  if (synchronises) nn_detail::hold_owed_meeting();
  if (is_training() && options.track_running_stats()) {
    num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  if (synchronises) {
    static const TextNumber kLabel = number_of_label("SyncBatchNorm");
    return nn_detail::synchronised_batch_norm(
        {input, weight, bias, running_mean, running_var, momentum, options.eps()}, options.process_group(),
        c10::str("SyncBatchNorm of ", options.num_features(), " channels"), {options.site, kLabel});
  }
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !options.track_running_stats(), momentum,
                                                   options.eps());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ')';
}

}  // namespace lockstep
