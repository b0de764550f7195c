// GradientPlacement: makes autograd compute gradients straight in their bucket.
//
// Autograd allocates a gradient like any other tensor and keeps it as the parameter's gradient. This class replaces the
// CPU allocator. In one pass it counts allocations of each size, and records which of them became each large gradient.
// In later passes that allocation gets the gradient's slot. A wrong guess costs a copy, but never gives a wrong result:
// a tensor in a slot is an ordinary tensor that owns the slot until it is freed, and the Reducer checks where each
// gradient is.
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

// A gradient's place in a bucket. The tensor that is allocated in it shares it, so the memory outlives both.
struct Slot {
  void* data = nullptr;
  std::size_t bytes = 0;
  torch::Tensor keep;  // the bucket's buffer
  std::atomic<bool> busy{false};
  std::atomic<bool> sealed{false};  // its bucket is being reduced: no tensor may get it
};

class GradientPlacement : public std::enable_shared_from_this<GradientPlacement> {
 public:
  // Smaller gradients are cheaper to copy than to predict.
  static constexpr std::size_t kMinBytes = std::size_t{32} << 10;

  explicit GradientPlacement(std::vector<torch::Tensor> parameters)
      : parameters_(std::move(parameters)), slots_(parameters_.size()), expected_(parameters_.size()) {}

  // While it lives, this thread's allocations are not counted and get no slot.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    bool was_active_;
  };

  // Counts this thread's allocations in backward passes until end(), which any thread may call. A new begin() starts
  // over.
  void begin() LOCKSTEP_EXCLUDES(mutex_);
  void end() LOCKSTEP_EXCLUDES(mutex_);
  // Whether the calling thread is the one that called begin().
  bool is_active_here() LOCKSTEP_EXCLUDES(mutex_);
  // False in forks: they compute no gradients of the group.
  bool is_this_process() const { return origin_.is_this_process(); }

  // Records that parameter `index` has its gradient at `data`: which allocation that was.
  void learn(std::size_t index, const void* data, std::size_t bytes) LOCKSTEP_EXCLUDES(mutex_);
  // The slot of parameter `index` from now on; null: none.
  void set_slot(std::size_t index, std::shared_ptr<Slot> slot) LOCKSTEP_EXCLUDES(mutex_);

  // The slot for an allocation of this thread; null: none.
  std::shared_ptr<Slot> take(std::size_t bytes) LOCKSTEP_EXCLUDES(mutex_);
  // Counts an allocation that got other memory.
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
