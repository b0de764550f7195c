#include "device_copy.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <map>

#include "lockstep/base/mutex.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {

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
