// LibTorch's BatchNorm layers have no virtual forward(), and modules call them through typed members, so neither
// another object nor another class could take their place. But all of them call aten::batch_norm with their own
// tensors. So a kernel for this operator, registered when it is first needed, decides what a call does: with tensors
// that carry a mark (of convert_sync_batchnorm) it synchronises; other training passes on the CPU take the fast way
// (fast_batch_norm.h); the rest is LibTorch's own function.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "lockstep/base/mutex.h"
#include "lockstep/c10d/process_groups.h"
#include "nn/batch_norm/synchronised_batch_norm.h"

namespace lockstep::nn_detail {

struct Mark {
  ProcessGroup group;                      // null: the world
  std::weak_ptr<torch::nn::Module> layer;  // empty where no shared_ptr owns the layer
  std::string name;
  LayerPlace place;
  bool group_was_left = false;  // then `group` is null: a mark may live as long as the process

  // aten::batch_norm cannot tell: a layer without running statistics uses those of its batch in evaluation mode too.
  bool layer_is_training() const {
    const auto owner = layer.lock();
    return !owner || owner->is_training();
  }
};

// The marks of all tensors. A TensorImpl stays the same when its tensor moves, changes its dtype or takes loaded
// values. Thread-safe.
class Marks {
 public:
  // Never destroyed: other threads may normalise while the program exits.
  static Marks& get();

  void set(const torch::Tensor& tensor, std::shared_ptr<const Mark> mark) LOCKSTEP_EXCLUDES(mutex_);
  // Lets go of a group that was left.
  void forget(const ProcessGroup& group) LOCKSTEP_EXCLUDES(mutex_);
  // Null if there is none.
  std::shared_ptr<const Mark> find(const torch::Tensor& tensor) LOCKSTEP_EXCLUDES(mutex_);

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Weak tensor;  // while it is here, no other tensor has this address
    std::shared_ptr<const Mark> mark;
  };

  Mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> marks_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Registers the kernel, once in a process. Thread-safe.
void intercept_batch_norm();

}  // namespace lockstep::nn_detail
