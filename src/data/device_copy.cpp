#include "device_copy.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

torch::Tensor copy(const torch::Tensor& tensor, torch::Device device) {
  return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
}

}  // namespace

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

CopiedBatch start_copy(Example batch, torch::Device device) {
  if (device.is_cpu()) return {std::move(batch), std::nullopt};
  const c10::impl::VirtualGuardImpl backend(device.type());
  const c10::Stream stream = backend.getStreamFromGlobalPool(device);
  const c10::StreamGuard guard(stream);
  CopiedBatch copied{{copy(batch.data, device), copy(batch.target, device)}, c10::Event(device.type())};
  copied.done->record(stream);
  return copied;
}

Example finish_copy(CopiedBatch copied) {
  if (!copied.done) return std::move(copied.batch);
  const torch::Tensor& any = copied.batch.data.defined() ? copied.batch.data : copied.batch.target;
  if (!any.defined()) return std::move(copied.batch);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(any.device().type()).getStream(any.device());
  copied.done->block(stream);
  // The memory belongs to the copying stream: its allocator must know that this stream uses it too.
  for (const torch::Tensor& tensor : {copied.batch.data, copied.batch.target}) {
    if (tensor.defined()) tensor.record_stream(stream);
  }
  return std::move(copied.batch);
}

}  // namespace lockstep::data
