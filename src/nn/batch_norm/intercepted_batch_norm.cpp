#include "intercepted_batch_norm.h"

#include <torch/library.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

#include "fast_batch_norm.h"
#include "nn/all_ranks.h"
#include "synchronised_batch_norm.h"

namespace lockstep::nn_detail {
namespace {

using torch::Tensor;

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
  const auto or_undefined = [](const std::optional<Tensor>& tensor) { return tensor.value_or(Tensor()); };
  const BatchNormCall call{
      input, or_undefined(weight), or_undefined(bias), or_undefined(running_mean), or_undefined(running_var), momentum,
      eps};
  if (mark != nullptr && has_other_ranks(mark->group))
    return synchronised_batch_norm(call, mark->group, c10::str("batch normalisation '", mark->name, "'"));
  if (training && suits_fast_batch_norm(call)) return fast_batch_norm(call);
  return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
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
        entry.mark, std::make_shared<const Mark>(Mark{nullptr, entry.mark->layer, entry.mark->name, true})));
  }
}

std::shared_ptr<const Mark> Marks::find(const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const MutexLock lock(mutex_);
  const auto found = marks_.find(tensor.unsafeGetTensorImpl());
  return found == marks_.end() ? nullptr : found->second.mark;
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

}  // namespace lockstep::nn_detail
