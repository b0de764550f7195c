// convert_sync_batchnorm. LibTorch's BatchNorm layers have no virtual forward(), and modules call them through typed
// members, so neither another object nor another class could take their place. All of them call aten::batch_norm with
// their own tensors. Converting a layer marks these tensors; a kernel for aten::batch_norm, registered with the first
// conversion, synchronises calls with marked tensors and passes on all others.
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "c10d/group_watch.h"
#include "lockstep/base/mutex.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "nn/all_ranks.h"
#include "synchronised_batch_norm.h"

namespace lockstep {
namespace {

using torch::Tensor;

struct Mark {
  ProcessGroup group;                      // null: the world
  std::weak_ptr<torch::nn::Module> layer;  // empty where no shared_ptr owns the layer
  std::string name;
  bool group_was_left = false;  // then `group` is null: a mark may live as long as the process

  // aten::batch_norm cannot tell: a layer without running statistics uses those of its batch in evaluation mode too.
  bool layer_is_training() const {
    const auto owner = layer.lock();
    return !owner || owner->is_training();
  }
};

// The marks of all tensors. A TensorImpl stays the same when its tensor moves, changes its dtype or takes loaded
// values.
class Marks {
 public:
  // Never destroyed: other threads may normalise while the program exits.
  static Marks& get() {
    static Marks& all = *new Marks;
    return all;
  }

  void set(const Tensor& tensor, std::shared_ptr<const Mark> mark) {
    MutexLock lock(mutex_);
    std::erase_if(marks_, [](const auto& entry) { return entry.second.tensor.expired(); });
    marks_.insert_or_assign(tensor.unsafeGetTensorImpl(), Entry{Weak(tensor.getIntrusivePtr()), std::move(mark)});
  }

  // Lets go of a group that was left.
  void forget(const ProcessGroup& group) {
    std::vector<std::shared_ptr<const Mark>> old;  // freed without the lock
    MutexLock lock(mutex_);
    for (auto& [tensor, entry] : marks_) {
      if (entry.mark->group != group) continue;
      old.push_back(std::exchange(
          entry.mark, std::make_shared<const Mark>(Mark{nullptr, entry.mark->layer, entry.mark->name, true})));
    }
  }

  std::shared_ptr<const Mark> find(const Tensor& tensor) {
    if (!tensor.defined()) return nullptr;
    MutexLock lock(mutex_);
    const auto found = marks_.find(tensor.unsafeGetTensorImpl());
    return found == marks_.end() ? nullptr : found->second.mark;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Weak tensor;  // while it is here, no other tensor has this address
    std::shared_ptr<const Mark> mark;
  };

  Mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> marks_ LOCKSTEP_GUARDED_BY(mutex_);
};

std::shared_ptr<const Mark> mark_of(const std::optional<Tensor>& weight, const std::optional<Tensor>& running_mean) {
  auto mark = weight ? Marks::get().find(*weight) : nullptr;
  return mark == nullptr && running_mean ? Marks::get().find(*running_mean) : mark;
}

Tensor batch_norm(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                  const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var, bool training,
                  double momentum, double eps, bool cudnn_enabled) {
  std::shared_ptr<const Mark> mark = training ? mark_of(weight, running_mean) : nullptr;
  if (mark != nullptr && !mark->layer_is_training()) mark = nullptr;
  TORCH_CHECK(mark == nullptr || !mark->group_was_left, "batch normalisation '", mark->name,
              "': destroy_process_group has left its group; call convert_sync_batchnorm with another one");
  if (mark == nullptr || !nn_detail::has_other_ranks(mark->group)) {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                  cudnn_enabled);
  }
  const auto or_undefined = [](const std::optional<Tensor>& tensor) { return tensor.value_or(Tensor()); };
  return nn_detail::synchronised_batch_norm({input, or_undefined(weight), or_undefined(bias),
                                             or_undefined(running_mean), or_undefined(running_var), momentum, eps},
                                            mark->group, c10::str("batch normalisation '", mark->name, "'"));
}

void intercept_batch_norm() {
  // The dispatcher looks at the autograd key first, in inference mode at the device's own key.
  static const std::vector<torch::Library> libraries = [] {
    using Key = c10::DispatchKey;
    std::vector<torch::Library> all;
    for (const Key key :
         {Key::AutogradCPU, Key::AutogradCUDA, Key::AutogradPrivateUse1, Key::CPU, Key::CUDA, Key::PrivateUse1}) {
      all.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      all.back().impl("batch_norm", TORCH_FN(batch_norm));
    }
    return all;
  }();
}

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
                                                const std::vector<std::string>& except) {
  const std::vector<Layer> layers = layers_to_convert(module, except);
  intercept_batch_norm();
  watch_groups([](const ProcessGroup& left) { Marks::get().forget(left); });
  std::vector<std::string> names;
  for (const Layer& layer : layers) {
    names.push_back(layer.name);
    if (layer.own != nullptr) layer.own->options.process_group(group);
    const auto mark = std::make_shared<const Mark>(Mark{group, layer.module, layer.name});
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
}  // namespace lockstep
