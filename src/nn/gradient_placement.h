// GradientPlacement: has gradients computed straight into their place in a bucket.
//
// Autograd allocates a gradient like any other tensor and keeps it as the parameter's gradient. This class stands
// behind the CPU allocator and learns, in one pass, the how-manieth allocation of its size each large gradient is; in
// later passes that allocation is answered with the gradient's slot. A wrong guess costs a copy, never a wrong result:
// what lands in a slot is an ordinary tensor that owns it until freed, and the Reducer looks where each gradient really
// is.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"

namespace lockstep::nn_detail {

// A gradient's place. Shared with the tensor that was allocated in it, so the memory outlives both.
struct Slot {
  void* data = nullptr;
  std::size_t bytes = 0;
  torch::Tensor keep;  // the bucket's buffer
  std::atomic<bool> busy{false};
};

class GradientPlacement : public std::enable_shared_from_this<GradientPlacement> {
 public:
  // Smaller gradients are cheaper to copy than to foresee.
  static constexpr std::size_t kMinBytes = std::size_t{32} << 10;

  explicit GradientPlacement(std::vector<torch::Tensor> parameters)
      : parameters_(std::move(parameters)), slots_(parameters_.size()), expected_(parameters_.size()) {}

  // From here on allocations that this thread makes in backward passes count, until end(), which any thread may call. A
  // new begin() starts over.
  void begin() LOCKSTEP_EXCLUDES(mutex_);
  void end() LOCKSTEP_EXCLUDES(mutex_);
  // Whether the calling thread is the one that counts.
  bool is_active_here() LOCKSTEP_EXCLUDES(mutex_);
  // False in forks: what they compute is none of the group's gradients.
  bool is_this_process() const { return origin_.is_this_process(); }

  // Parameter `index` got its gradient at `data`: remembers which allocation that was.
  void learn(std::size_t index, const void* data, std::size_t bytes) LOCKSTEP_EXCLUDES(mutex_);
  // Where parameter `index` belongs from now on; null: nowhere.
  void set_slot(std::size_t index, std::shared_ptr<Slot> slot) LOCKSTEP_EXCLUDES(mutex_);

  // Answers an allocation of this thread: a slot, or nothing.
  std::shared_ptr<Slot> take(std::size_t bytes) LOCKSTEP_EXCLUDES(mutex_);
  // What was answered otherwise.
  void note(std::size_t bytes, const void* data) LOCKSTEP_EXCLUDES(mutex_);

 private:
  struct Allocation {
    std::size_t bytes;
    std::size_t nth;  // among those of its size
  };

  const Origin origin_;
  const std::vector<torch::Tensor> parameters_;
  Mutex mutex_;
  std::thread::id thread_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Slot>> slots_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::optional<Allocation>> expected_ LOCKSTEP_GUARDED_BY(mutex_);
  // From (bytes, nth) to the parameter.
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> parameter_of_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::size_t, std::size_t> counts_ LOCKSTEP_GUARDED_BY(mutex_);  // by bytes, in this pass
  std::map<const void*, Allocation> seen_ LOCKSTEP_GUARDED_BY(mutex_);     // in this pass
};

}  // namespace lockstep::nn_detail
