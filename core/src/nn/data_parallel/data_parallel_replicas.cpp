#include "data_parallel_replicas.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <unordered_set>

#include "lockstep/base/shown_model.h"
#include "nn/all_ranks.h"
#include "nn/batch_norm/synchronised_batch_norm.h"

namespace lockstep::nn_detail {
namespace {

using Names = torch::OrderedDict<std::string, torch::Tensor>;

// Constructing a module draws random numbers. This puts the generator back, so that the program's own random numbers
// stay the same.
class KeepRandomState {
 public:
  KeepRandomState() {
    const std::scoped_lock lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepRandomState() {
    const std::scoped_lock lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  torch::Tensor state_;
};

std::vector<torch::Tensor> each_once(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> result;
  std::unordered_set<const void*> seen;
  for (const torch::Tensor& tensor : tensors) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back(tensor);
  }
  return result;
}

// Leaves out the module itself: modules() would need a shared_ptr to it, and there may be none.
std::vector<std::shared_ptr<torch::nn::Module>> submodules(const torch::nn::Module& module) {
  return module.modules(/*include_self=*/false);
}

bool same_tensors(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return x.is_same(y); });
}

// Returns the replica's tensors in the order of the module's tensors `own`. Matches them by name, because a tensor with
// several names in one of both may be several tensors in the other.
std::vector<torch::Tensor> matching(const Names& wanted, const Names& found, const std::vector<torch::Tensor>& own,
                                    const char* what, const std::string& advice) {
  std::map<const void*, torch::Tensor> partner;
  std::map<const void*, const void*> owner;
  for (const auto& item : wanted) {
    if (!item.value().defined()) continue;
    const torch::Tensor* const other = found.find(item.key());
    TORCH_CHECK_VALUE(other != nullptr && other->defined(), "DataParallel: the replica has no ", what, " '", item.key(),
                      "', which the module has. ", advice);
    TORCH_CHECK_VALUE(other->sizes() == item.value().sizes(), "DataParallel: ", what, " '", item.key(),
                      "' has the shape ", other->sizes(), " in the replica and ", item.value().sizes(),
                      " in the module. ", advice);
    const void* const impl = item.value().unsafeGetTensorImpl();
    const auto [place, fresh] = owner.emplace(other->unsafeGetTensorImpl(), impl);
    TORCH_CHECK_VALUE(place->second == impl, "DataParallel: ", what, " '", item.key(),
                      "' is shared with another one in the replica, but not in the module. ", advice);
    const auto [known, first] = partner.emplace(impl, *other);
    TORCH_CHECK_VALUE(known->second.is_same(*other), "DataParallel: ", what, " '", item.key(),
                      "' is shared with another one in the module, but not in the replica. ", advice);
  }
  for (const auto& item : found) {
    TORCH_CHECK_VALUE(!item.value().defined() || owner.count(item.value().unsafeGetTensorImpl()) == 1,
                      "DataParallel: the replica has a ", what, " '", item.key(), "', which the module does not have. ",
                      advice);
  }
  std::vector<torch::Tensor> result;
  result.reserve(own.size());
  for (const torch::Tensor& tensor : own) result.push_back(partner.at(tensor.unsafeGetTensorImpl()));
  return result;
}

// Makes `tensor` share the memory of `value`. Autograd then counts a change of `original` as a change of `tensor`.
void alias(torch::Tensor& tensor, const torch::Tensor& value, const torch::Tensor& original) {
  tensor.set_data(value);
  if (!original.is_inference() && !tensor.is_inference())
    tensor.unsafeGetTensorImpl()->set_version_counter(original.unsafeGetTensorImpl()->version_counter());
}

// How often the tensor was changed in place. Tensors of inference mode do not count.
std::int64_t version_of(const torch::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

bool same_elements(const torch::Tensor& a, const torch::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() && a.device() == b.device() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Such a layer would wait for the other ranks in the thread of each replica, in no order that all ranks have.
void refuse_synchronised_layers(const torch::nn::Module& module) {
  if (!has_other_ranks(nullptr)) return;
  for (const SynchronisedLayer& layer : synchronised_layers(module)) {
    if (!layer.module->is_training() || !has_other_ranks(layer.group)) continue;
    TORCH_CHECK_VALUE(false, "DataParallel: layer '", layer.name, "' (", layer.module->name(),
                      ") synchronises its batches with other ranks, and each replica would wait for them in a thread "
                      "of its own; use DistributedDataParallel with a process for each device, or DataParallel with "
                      "one device, or leave the layer a plain BatchNorm");
  }
}

}  // namespace

ReplicaModules::ReplicaModules(std::shared_ptr<torch::nn::Module> module, std::vector<torch::Device> devices,
                               Factory factory)
    : module_(std::move(module)), devices_(std::move(devices)), factory_(std::move(factory)) {
  check_device(*module_, devices_.front());
  refuse_synchronised_layers(*module_);
  make();
}

void ReplicaModules::check_device(const torch::nn::Module& module, torch::Device device) {
  const auto check = [&](const char* what, const Names& tensors) {
    for (const auto& item : tensors) {
      TORCH_CHECK_VALUE(!item.value().defined() || item.value().device() == device, "DataParallel: ", what, " '",
                        item.key(), "' is on ", item.value().device(), ", but device_ids begins with ", device,
                        "; move the module there first: module->to(device)");
    }
  };
  check("parameter", with_present_tensors(module).named_parameters());
  check("buffer", module.named_buffers());
}

bool ReplicaModules::changed() const {
  // A replica that has put another buffer in the place of its own goes on from the module's buffer, as in PyTorch.
  const auto has_other_tensors = [](const Replica& replica) {
    return follow_models(*replica.module) != replica.times_followed;
  };
  return replicas_.empty() || std::any_of(replicas_.begin(), replicas_.end(), has_other_tensors) ||
         submodules(*module_) != modules_ || !same_tensors(parameters_, each_once(module_->parameters())) ||
         !same_tensors(buffers_, each_once(module_->buffers()));
}

void ReplicaModules::make() {
  replicas_.clear();
  parameters_ = each_once(module_->parameters());
  buffers_ = each_once(module_->buffers());
  modules_ = submodules(*module_);
  const KeepRandomState keep;
  const c10::InferenceMode no_inference(false);
  std::vector<Replica> made;
  made.reserve(devices_.size());
  for (std::size_t i = 0; i < devices_.size(); ++i) made.push_back(match(make_one(i), i));
  replicas_ = std::move(made);
}

std::shared_ptr<torch::nn::Module> ReplicaModules::make_one(std::size_t replica) const {
  const c10::OptionalDeviceGuard guard(devices_[replica].is_cpu() ? std::nullopt
                                                                  : std::optional<c10::Device>(devices_[replica]));
  if (factory_) {
    std::shared_ptr<torch::nn::Module> made = factory_();
    TORCH_CHECK_VALUE(made != nullptr && made != module_,
                      "DataParallel: the function that makes replicas must return a new module in each call");
    made->to(devices_[replica]);
    return made;
  }
  try {
    return module_->clone(devices_[replica].is_cpu() ? std::nullopt : std::optional<c10::Device>(devices_[replica]));
  } catch (c10::Error& error) {
    error.add_context(fmt::format(
        "DataParallel: {} cannot be cloned. Derive it from torch::nn::Cloneable<...>, and register parameters, buffers "
        "and submodules in reset(); or give DataParallel a function that makes a module of the same structure: "
        "DataParallel<Net> parallel(net, options, [] {{ return Net(); }})",
        module_->name()));
    throw;
  }
}

ReplicaModules::Replica ReplicaModules::match(std::shared_ptr<torch::nn::Module> made, std::size_t replica) const {
  const std::string advice =
      factory_ ? "The function that makes replicas must give them the module's structure"
               : "Register parameters, buffers and submodules in reset(), with the module's own options";
  Replica result;
  result.parameters = matching(module_->named_parameters(), made->named_parameters(), parameters_, "parameter", advice);
  result.buffers = matching(module_->named_buffers(), made->named_buffers(), buffers_, "buffer", advice);
  result.modules = submodules(*made);
  result.times_followed = follow_models(*made);
  TORCH_CHECK_VALUE(result.modules.size() == modules_.size(), "DataParallel: the replica has ", result.modules.size(),
                    " submodules, and the module has ", modules_.size(), ". ", advice);
  result.module = std::move(made);
  return result;
}

void ReplicaModules::take_over(std::size_t count) {
  const c10::InferenceMode no_inference(false);
  const torch::NoGradGuard no_grad;
  check_device(*module_, devices_.front());
  refuse_synchronised_layers(*module_);
  if (changed()) make();
  for (std::size_t i = 0; i < count; ++i) {
    take_over_flags(replicas_[i]);
    refuse_synchronised_layers(*replicas_[i].module);  // what the program's own function makes may have other layers
    take_over_buffers(i);
  }
}

// Parents come before their children, and train() of a parent changes them too.
void ReplicaModules::take_over_flags(Replica& replica) const {
  if (replica.module->is_training() != module_->is_training()) replica.module->train(module_->is_training());
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    if (replica.modules[i]->is_training() != modules_[i]->is_training())
      replica.modules[i]->train(modules_[i]->is_training());
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (replica.parameters[i].requires_grad() != parameters_[i].requires_grad())
      replica.parameters[i].set_requires_grad(parameters_[i].requires_grad());
  }
}

// Each replica's copy of a buffer has its own version counter, so that a change by one replica does not invalidate the
// graphs of the others. Writing to the copy here does not count as a change, unless the version of the original has
// changed. So a new pass invalidates the graph of an earlier one exactly where it would on one device.
void ReplicaModules::take_over_buffers(std::size_t replica) {
  std::vector<std::int64_t>& versions = replicas_[replica].versions;
  versions.resize(buffers_.size());
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    torch::Tensor& own = replicas_[replica].buffers[i];
    const torch::Tensor original = buffers_[i].detach();
    const std::int64_t version = version_of(buffers_[i]);
    const bool changed = std::exchange(versions[i], version) != version;
    if (replica == 0) {
      if (!same_elements(own, original)) alias(own, original, buffers_[i]);
      continue;
    }
    if (own.sizes() != original.sizes() || own.scalar_type() != original.scalar_type() ||
        own.device() != devices_[replica] || same_elements(own, original)) {
      own.set_data(original.to(devices_[replica], /*non_blocking=*/false, /*copy=*/true));
    } else {
      own.variable_data().copy_(original);
    }
    if (changed && !own.is_inference()) own.unsafeGetTensorImpl()->bump_version();
  }
}

void ReplicaModules::take_over_parameters(std::size_t replica) {
  const c10::InferenceMode no_inference(false);
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor& own = replicas_[replica].parameters[i];
    const torch::Tensor original = parameters_[i].detach();
    // On another device to() allocates new memory in each pass, so graphs of earlier passes keep their old values.
    const torch::Tensor value = original.to(devices_[replica], /*non_blocking=*/true);
    if (!same_elements(own, value)) alias(own, value, parameters_[i]);
  }
}

std::vector<torch::Tensor> ReplicaModules::trained() const {
  std::vector<torch::Tensor> result;
  for (const torch::Tensor& parameter : parameters_) {
    if (parameter.requires_grad()) result.push_back(parameter);
  }
  return result;
}

std::vector<torch::Tensor> ReplicaModules::trained_of(std::size_t replica) const {
  std::vector<torch::Tensor> result;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].requires_grad()) result.push_back(replicas_[replica].parameters[i]);
  }
  return result;
}

}  // namespace lockstep::nn_detail
