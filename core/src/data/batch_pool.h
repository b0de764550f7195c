// Reuses the memory of batches. Otherwise each batch of images takes new pages from the system, and zeroing these costs
// a large part of the time of decoding.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

enum class HostMemory { kPageable, kPinned };

// When the last user of a tensor frees it, at any time and in any thread, its memory goes back to the pool for a later
// batch. The pool lives as long as its loader and such tensors. Page-locked memory comes from LibTorch's own allocator,
// which knows when a copy to the device has ended.
class BatchPool final : public BatchMemory, public std::enable_shared_from_this<BatchPool> {
 public:
  // Keeps at most `most_kept` unused blocks.
  static std::shared_ptr<BatchPool> make(HostMemory memory, std::size_t most_kept);

  torch::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) override LOCKSTEP_EXCLUDES(mutex_);

 private:
  BatchPool(HostMemory memory, std::size_t most_kept) : memory_(memory), most_kept_(most_kept) {}
  torch::Tensor take(std::int64_t bytes) LOCKSTEP_EXCLUDES(mutex_);
  void give_back(torch::Tensor block) LOCKSTEP_EXCLUDES(mutex_);

  const Origin origin_;  // a fork does not use the pool: another thread may have held its lock
  const HostMemory memory_;
  const std::size_t most_kept_;
  Mutex mutex_;
  std::vector<torch::Tensor> free_ LOCKSTEP_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace lockstep::data
