// Memory of batches that is used again. Without it each batch of images takes fresh pages from the system, whose
// zeroing costs as much as a good part of the decoding.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

enum class HostMemory { kPageable, kPinned };

// A tensor that is given back by its last user, whenever and in whichever thread that is, serves a later batch; the
// pool outlives its loader as long as such tensors live. Page-locked memory is left to LibTorch's own allocator, which
// knows when a copy to the device that reads it has ended.
class BatchPool final : public BatchMemory, public std::enable_shared_from_this<BatchPool> {
 public:
  // Keeps at most `most_kept` blocks that nobody uses.
  static std::shared_ptr<BatchPool> make(HostMemory memory, std::size_t most_kept);

  torch::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) override LOCKSTEP_EXCLUDES(mutex_);

 private:
  BatchPool(HostMemory memory, std::size_t most_kept) : memory_(memory), most_kept_(most_kept) {}
  torch::Tensor take(std::int64_t bytes) LOCKSTEP_EXCLUDES(mutex_);
  void give_back(torch::Tensor block) LOCKSTEP_EXCLUDES(mutex_);

  const Origin origin_;  // forks do without the pool: another thread may have been at it
  const HostMemory memory_;
  const std::size_t most_kept_;
  Mutex mutex_;
  std::vector<torch::Tensor> free_ LOCKSTEP_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace lockstep::data
