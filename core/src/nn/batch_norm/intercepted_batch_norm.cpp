#include "intercepted_batch_norm.h"

#include <torch/library.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

#include "fast_batch_norm.h"
#include "nn/all_ranks.h"

namespace lockstep::nn_detail {
namespace {

using torch::Tensor;

std::shared_ptr<const Mark> mark_of(const std::optional<Tensor>& weight, const std::optional<Tensor>& running_mean) {
  auto mark = weight ? Marks::get().find(*weight) : nullptr;
  return mark == nullptr && running_mean ? Marks::get().find(*running_mean) : mark;
}

Tensor intercepted(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                   const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var, bool training,
                   double momentum, double eps, bool cudnn_enabled) {
  std::shared_ptr<const Mark> mark = training ? mark_of(weight, running_mean) : nullptr;
  if (mark != nullptr && !mark->layer_is_training()) mark = nullptr;
  TORCH_CHECK(mark == nullptr || !mark->group_was_left, "batch normalisation '", mark->name,
              "': destroy_process_group has left its group; call convert_sync_batchnorm with another one");
  const auto or_undefined = [](const std::optional<Tensor>& tensor) { return tensor.value_or(Tensor()); };
  const BatchNormCall call{
      input, or_undefined(weight), or_undefined(bias), or_undefined(running_mean), or_undefined(running_var), momentum,
      eps};
  if (mark != nullptr && has_other_ranks(mark->group))
    return synchronised_batch_norm(call, mark->group, c10::str("batch normalisation '", mark->name, "'"), mark->place);
  // A converted layer takes the faster way in a world of one rank too.
  if (training && (mark != nullptr || is_fast_everywhere()) && suits_fast_batch_norm(call))
    return fast_batch_norm(call);
  return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
}

// In inference mode, and in kernels that have left autograd behind: a Function would make a graph even there.
Tensor below_autograd(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                      const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var,
                      bool training, double momentum, double eps, bool cudnn_enabled) {
  const torch::NoGradGuard no_grad;
  return intercepted(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
}

}  // namespace

Marks& Marks::get() {
  static Marks& all = *new Marks;
  return all;
}

void Marks::set(const Tensor& tensor, std::shared_ptr<const Mark> mark) {
  const MutexLock lock(mutex_);
  std::erase_if(marks_, [](const auto& entry) { return entry.second.tensor.expired(); });
  marks_.insert_or_assign(tensor.unsafeGetTensorImpl(), Entry{Weak(tensor.getIntrusivePtr()), std::move(mark)});
}

void Marks::forget(const ProcessGroup& group) {
  std::vector<std::shared_ptr<const Mark>> old;  // freed without the lock
  const MutexLock lock(mutex_);
  for (auto& [tensor, entry] : marks_) {
    if (entry.mark->group != group) continue;
    old.push_back(std::exchange(
        entry.mark,
        std::make_shared<const Mark>(Mark{nullptr, entry.mark->layer, entry.mark->name, entry.mark->place, true})));
  }
}

std::shared_ptr<const Mark> Marks::find(const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const MutexLock lock(mutex_);
  const auto found = marks_.find(tensor.unsafeGetTensorImpl());
  return found == marks_.end() ? nullptr : found->second.mark;
}

void intercept_batch_norm() {
  // Never destroyed: other threads may normalise while the program exits.
  [[maybe_unused]] static const auto& libraries = *[] {
    using Key = c10::DispatchKey;
    auto* all = new std::vector<torch::Library>;
    const auto implement = [&](Key key, auto function) {
      all->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      all->back().impl("batch_norm", function);
    };
    for (const Key key : {Key::AutogradCPU, Key::AutogradCUDA, Key::AutogradPrivateUse1})
      implement(key, TORCH_FN(intercepted));
    for (const Key key : {Key::CPU, Key::CUDA, Key::PrivateUse1}) implement(key, TORCH_FN(below_autograd));
    return all;
  }();
}

}  // namespace lockstep::nn_detail
