#include "batch_memory.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/base/mutex.h"
#include "lockstep/data/errors.h"

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

torch::Device usable_device(torch::Device device) {
  if (device.is_cpu()) return device;
  const bool known = c10::impl::hasDeviceGuardImpl(device.type());
  const int count = known ? c10::impl::VirtualGuardImpl(device.type()).deviceCount() : 0;
  if (device.index() < count && count > 0) {
    return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  throw DataError(ErrorCode::kUnavailable,
                  fmt::format("device {}: this process sees {} devices of that type; leave `device` out to get batches "
                              "on the CPU",
                              device.str(), count));
}

// PrivateUse1: a device of another maker.
bool has_page_locked_memory() {
  if (torch::cuda::is_available() || at::hasXPU()) return true;
  return at::isPrivateUse1HooksRegistered() && at::detail::getPrivateUse1Hooks().isAvailable();
}

namespace {

// One for each device. The memory of a batch belongs to the stream on which it was copied, and only a later batch on
// the same stream can use it again.
c10::Stream copy_stream(torch::Device device) {
  static Mutex& mutex = *new Mutex;
  static auto& streams = *new std::map<torch::DeviceIndex, c10::Stream>;
  const c10::impl::VirtualGuardImpl backend(device.type());
  MutexLock lock(mutex);
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  return streams.emplace(device.index(), backend.getStreamFromGlobalPool(device)).first->second;
}

}  // namespace

CopiedBatch start_copy(std::unique_ptr<AnyBatch> batch, torch::Device device) {
  if (device.is_cpu()) return {std::move(batch)};
  const c10::Stream stream = copy_stream(device);
  const c10::StreamGuard guard(stream);
  batch->visit([&](torch::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.to(device, /*non_blocking=*/true);
  });
  CopiedBatch copied{std::move(batch), c10::Event(device.type())};
  copied.done->record(stream);
  return copied;
}

std::unique_ptr<AnyBatch> finish_copy(CopiedBatch copied) {
  if (!copied.done) return std::move(copied.batch);
  std::vector<torch::Tensor> tensors;
  copied.batch->visit([&](torch::Tensor& tensor) {
    if (tensor.defined()) tensors.push_back(tensor);
  });
  if (tensors.empty()) return std::move(copied.batch);
  const torch::Device device = tensors[0].device();
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  copied.done->block(stream);
  // The memory belongs to the copying stream: its allocator must know that this stream uses it too.
  for (const torch::Tensor& tensor : tensors) tensor.record_stream(stream);
  return std::move(copied.batch);
}

}  // namespace lockstep::data
