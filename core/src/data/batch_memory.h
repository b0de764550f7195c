// Where batches lie: memory of the host that is used again, and copies on a device.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

enum class HostMemory { kPageable, kPinned };

// Reuses the memory of batches. Otherwise each batch of images takes new pages from the system, and zeroing these costs
// a large part of the time of decoding.
//
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

// The device with its number: without one, the calling thread's current device. Throws DataError (kUnavailable) when
// this process cannot use it.
torch::Device usable_device(torch::Device device);

// Whether LibTorch has page-locked memory in this program.
bool has_page_locked_memory();

// A batch that is being copied to a device, on another stream than the model's, so that copies and the model's work
// overlap. The thread that starts the copy gives it to the thread that uses the batch.
struct CopiedBatch {
  std::unique_ptr<AnyBatch> batch;
  std::optional<c10::Event> done = std::nullopt;
};

// Starts the copy. Returns at once if the batch is in page-locked memory, otherwise when it is copied. For the CPU it
// returns the batch itself. Any thread.
CopiedBatch start_copy(std::unique_ptr<AnyBatch> batch, torch::Device device);

// Returns the batch for work that the calling thread enqueues from now on; does not block.
std::unique_ptr<AnyBatch> finish_copy(CopiedBatch copied);

}  // namespace lockstep::data
