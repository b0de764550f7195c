#include "batch_pool.h"

#include <c10/util/accumulate.h>

#include <algorithm>

namespace lockstep::data {
namespace {

// Smaller blocks come from the C library's free lists, without new pages from the system.
constexpr std::int64_t kLeastBytes = 64 * 1024;

}  // namespace

std::shared_ptr<BatchPool> BatchPool::make(HostMemory memory, std::size_t most_kept) {
  return std::shared_ptr<BatchPool>(new BatchPool(memory, most_kept), LeakInForks());
}

torch::Tensor BatchPool::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto options = torch::TensorOptions(dtype);
  const std::int64_t bytes = c10::multiply_integers(sizes) * static_cast<std::int64_t>(c10::elementSize(dtype));
  if (memory_ == HostMemory::kPinned) return torch::empty(sizes, options.pinned_memory(true));
  if (bytes < kLeastBytes) return torch::empty(sizes, options);
  torch::Tensor block = take(bytes);
  void* memory = block.mutable_data_ptr();
  return torch::from_blob(
      memory, sizes, [pool = shared_from_this(), block](void*) { pool->give_back(block); }, options);
}

torch::Tensor BatchPool::take(std::int64_t bytes) {
  if (origin_.is_this_process()) {
    MutexLock lock(mutex_);
    // The block that came back last is most likely in a cache. A much larger block would be a waste.
    const auto fits = [&](const torch::Tensor& block) { return block.numel() >= bytes && block.numel() / 2 <= bytes; };
    const auto found = std::find_if(free_.rbegin(), free_.rend(), fits);
    if (found != free_.rend()) {
      torch::Tensor block = std::move(*found);
      free_.erase(std::next(found).base());
      return block;
    }
  }
  return torch::empty({bytes}, torch::kByte);
}

void BatchPool::give_back(torch::Tensor block) {
  if (!origin_.is_this_process()) return;
  torch::Tensor dropped;  // freed after the lock is released
  MutexLock lock(mutex_);
  free_.push_back(std::move(block));
  if (free_.size() <= most_kept_) return;
  dropped = std::move(free_.front());
  free_.erase(free_.begin());
}

}  // namespace lockstep::data
