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
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/fork.h"

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
  void begin();
  void end();
  // Whether the calling thread is the one that counts.
  bool is_active_here();
  // False in forks: what they compute is none of the group's gradients.
  bool is_this_process() const { return origin_.is_this_process(); }

  // Parameter `index` got its gradient at `data`: remembers which allocation that was.
  void learn(std::size_t index, const void* data, std::size_t bytes);
  // Where parameter `index` belongs from now on; null: nowhere.
  void set_slot(std::size_t index, std::shared_ptr<Slot> slot);

  // Answers an allocation of this thread: a slot, or nothing.
  std::shared_ptr<Slot> take(std::size_t bytes);
  // What was answered otherwise.
  void note(std::size_t bytes, const void* data);

 private:
  struct Allocation {
    std::size_t bytes;
    std::size_t nth;  // among those of its size
  };

  const Origin origin_;
  std::mutex mutex_;  // guards all below
  std::thread::id thread_;
  const std::vector<torch::Tensor> parameters_;
  std::vector<std::shared_ptr<Slot>> slots_;
  std::vector<std::optional<Allocation>> expected_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> parameter_of_;  // (bytes, nth) -> parameter
  std::map<std::size_t, std::size_t> counts_;                                // by bytes, in this pass
  std::map<const void*, Allocation> seen_;                                   // in this pass
};

}  // namespace lockstep::nn_detail
