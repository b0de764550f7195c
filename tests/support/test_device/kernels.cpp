// Memory, views and copies are the device's own; all other operations are those of the CPU, on copies.
#include "support/test_device/kernels.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <tuple>

#include "lockstep/base/mutex.h"
#include "support/test_device.h"
#include "support/test_device/memory.h"
#include "support/test_device/streams.h"

namespace lockstep::test {
namespace device {
namespace {

constexpr auto kDeviceType = c10::DeviceType::PrivateUse1;
using OptionalTensor = std::optional<at::Tensor>;

bool is_ours(const at::Tensor& tensor) {
  return tensor.device().type() == kDeviceType;
}

// ---- what is counted

struct Counters {
  Mutex mutex;
  std::array<Traffic, kTestDevices> traffic LOCKSTEP_GUARDED_BY(mutex);
  std::array<int, kTestDevices> host_waits LOCKSTEP_GUARDED_BY(mutex) = {};
};

Counters& counters() {
  static auto* const all = new Counters;
  return *all;
}

// While one lives in this thread, copies are a kernel's.
class KernelScope {
 public:
  KernelScope() { ++depth(); }
  ~KernelScope() { --depth(); }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  static int& depth() {
    thread_local int depth = 0;
    return depth;
  }
};

void count(Copies Traffic::*kind, c10::Device device, const at::Tensor& copied) {
  if (KernelScope::depth() > 0 || copied.numel() == 0) return;
  MutexLock lock(counters().mutex);
  Copies& copies = counters().traffic.at(static_cast<std::size_t>(device.index())).*kind;
  ++copies.count;
  copies.bytes += static_cast<std::int64_t>(copied.nbytes());
}

// ---- memory

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "test device: only dense tensors, asked for ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "test device: only CPU tensors can be in page-locked memory");
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_generic(size, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "test device: only CPU tensors can be in page-locked memory");
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_strided_generic(
      size, stride, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "test device: this storage cannot be resized");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = allocator().allocate(bytes);
  const std::size_t kept = std::min(bytes, impl->nbytes());
  if (kept > 0) allocator().copy_data(data.get(), impl->data(), kept);
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

void reserve(const c10::Storage& storage, std::size_t bytes) {
  if (bytes > storage.nbytes()) resize_storage(storage, bytes);
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  if (self.sizes() == size && !format) return self;  // whatever its strides
  const auto offset = static_cast<std::size_t>(self.storage_offset());
  reserve(self.storage(), at::detail::computeStorageNbytesContiguous(size, self.itemsize(), offset));
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  const auto at = static_cast<std::size_t>(offset);
  reserve(source, stride.empty() && !size.empty()
                      ? at::detail::computeStorageNbytesContiguous(size, self.itemsize(), at)
                      : at::detail::computeStorageNbytes(size, stride, self.itemsize(), at));
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);  // has no need to touch memory
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, elements, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  return set_storage(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, &allocator(), /*resizable=*/true), 0, {0},
                     {});
}

// The same elements as a CPU tensor, to be had when the work that needs them is done: the only way to the bytes. That
// tensor must not outlive the memory of the given one.
std::function<at::Tensor()> opened_later(const at::Tensor& tensor) {
  return [address = tensor.const_data_ptr(), sizes = tensor.sizes().vec(), strides = tensor.strides().vec(),
          options = tensor.options().device(at::kCPU).memory_format(std::nullopt), device = tensor.device().index(),
          conjugated = tensor.is_conj(), negated = tensor.is_neg()] {
    const std::size_t bytes = at::detail::computeStorageNbytes(sizes, strides, options.dtype().itemsize());
    if (bytes == 0) return at::empty_strided(sizes, strides, options);
    at::Tensor view = at::from_blob(open(address, bytes, device), sizes, strides, options);
    view._set_conj(conjugated);
    view._set_neg(negated);
    return view;
  };
}

// The same now. Work that the current stream still has is done first, as this is a kernel on that stream.
at::Tensor opened(const at::Tensor& tensor) {
  finish(current_stream(tensor.device().index()));
  return opened_later(tensor)();
}

// ---- copies

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// A copy that waits in the stream. It keeps the host's memory, as LibTorch's allocators of page-locked memory do, but
// not the device's: record_stream is the program's duty.
void enqueue_copy(const at::Tensor& host, const at::Tensor& ours, bool to_host) {
  const c10::DeviceIndex device = ours.device().index();
  enqueue(current_stream(device), [keep = host.storage(), place = host.const_data_ptr(),
                                   address = ours.const_data_ptr(), bytes = ours.nbytes(), device, to_host] {
    std::byte* const memory = open(address, bytes, device);
    auto* const host_memory = static_cast<std::byte*>(const_cast<void*>(place));
    to_host ? std::memcpy(host_memory, memory, bytes) : std::memcpy(memory, host_memory, bytes);
  });
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const at::Tensor& host = is_ours(self) ? to : self;
  const at::Tensor& ours = is_ours(self) ? self : to;
  const bool crosses = !is_ours(host);
  const bool pinned = crosses && ours.numel() > 0 && is_pinned(host.const_data_ptr());
  const bool waits = pinned && non_blocking && same_bytes(self, to);
  if (!crosses && self.device() != to.device()) count(&Traffic::from_peer, to.device(), self);
  if (crosses) count(is_ours(self) ? &Traffic::to_host : &Traffic::from_host, ours.device(), self);
  if (pinned) count(&Traffic::pinned, ours.device(), self);
  if (waits) count(&Traffic::enqueued, ours.device(), self);
  if (crosses && !waits) count_host_wait(ours.device().index());
  if (waits) {
    enqueue_copy(host, ours, /*to_host=*/is_ours(self));
  } else if (self.device() == to.device()) {
    enqueue(current_stream(to.device().index()),
            [from = opened_later(self), target = opened_later(to)] { target().copy_(from()); });
  } else {
    const at::Tensor from = is_ours(self) ? opened(self) : self;
    at::Tensor target = is_ours(to) ? opened(to) : to;
    target.copy_(from);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, /*non_blocking=*/false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  return self.to(at::kCPU).item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  if (self.storage().data() != nullptr) record_use(self.storage().data(), stream);
}

// Whether module->to(device) may put one tensor's memory into the other. LibTorch's own answer knows GPUs by name, and
// says no for devices of other makers.
bool can_take_over(const at::Tensor& self, const at::Tensor& from) {
  const auto is_dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || is_ours(tensor));
  };
  return is_dense(self) && is_dense(from);
}

// ---- kernels

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  enqueue(current_stream(self.device().index()), [target = opened_later(self), value] { target().fill_(value); });
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  return fill(self, 0);
}

OptionalTensor opened_if(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? opened(*tensor) : OptionalTensor();
}

at::Tensor on(c10::Device device, const at::Tensor& result) {
  return result.defined() ? result.to(device) : result;
}

// LibTorch has no CPU fallback of convolutions: it asks every new device for its own.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                       c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, std::int64_t groups) {
  const KernelScope scope;
  return on(input.device(), at::convolution(opened(input), opened(weight), opened_if(bias), stride, padding, dilation,
                                            transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                    const at::Tensor& weight, c10::IntArrayRef stride,
                                                                    c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                                                    bool transposed, c10::IntArrayRef output_padding,
                                                                    std::int64_t groups, std::array<bool, 3> wanted) {
  const KernelScope scope;
  const std::vector<std::int64_t> bias_sizes{gradient.size(1)};
  const auto [of_input, of_weight, of_bias] =
      at::convolution_backward(opened(gradient), opened(input), opened(weight), bias_sizes, stride, padding, dilation,
                               transposed, output_padding, groups, wanted);
  const c10::Device device = input.device();
  return {on(device, of_input), on(device, of_weight), on(device, of_bias)};
}

// Its schema does not say that it changes the running statistics, so the fallback would change copies of them.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& input, const OptionalTensor& weight,
                                                          const OptionalTensor& bias, const OptionalTensor& mean,
                                                          const OptionalTensor& variance, bool training,
                                                          double momentum, double epsilon) {
  const KernelScope scope;
  const auto [result, used_mean, used_deviation] =
      at::native_batch_norm(opened(input), opened_if(weight), opened_if(bias), opened_if(mean), opened_if(variance),
                            training, momentum, epsilon);
  const c10::Device device = input.device();
  return {on(device, result), on(device, used_mean), on(device, used_deviation)};
}

// As on a GPU, where the CPU's kernels would take anything.
void check_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  static const std::set<std::string> kTakeHostIndices = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"};
  const std::string& name = op.operator_name().name;
  std::optional<c10::Device> first;
  const auto check = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || (tensor.is_cpu() && (tensor.dim() == 0 || kTakeHostIndices.contains(name)))) return;
    if (!first) first = tensor.device();
    TORCH_CHECK(tensor.device() == *first, name, ": Expected all tensors to be on the same device, found ", *first,
                " and ", tensor.device());
  };
  for (const c10::IValue& argument : torch::jit::last(stack, op.schema().arguments().size())) {
    if (argument.isTensor()) check(argument.toTensor());
    if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) check(tensor);
    }
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const KernelScope scope;
  check_devices(op, *stack);
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

}  // namespace

void count_host_wait(c10::DeviceIndex device) {
  if (KernelScope::depth() > 0) return;
  MutexLock lock(counters().mutex);
  ++counters().host_waits.at(static_cast<std::size_t>(device));
}

void register_kernels() {
  static torch::Library every(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  every.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  static torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  own.impl("empty.memory_format", TORCH_FN(empty));
  own.impl("empty_strided", TORCH_FN(empty_strided));
  own.impl("resize_", TORCH_FN(resize));
  own.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  own.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  own.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  own.impl("set_", TORCH_FN(set_nothing));
  own.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  own.impl("view", TORCH_FN(at::native::view));
  own.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  own.impl("unfold", TORCH_FN(at::native::unfold));
  own.impl("_copy_from", TORCH_FN(copy_from));
  own.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  own.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  own.impl("record_stream", TORCH_FN(record_stream));
  own.impl("_has_compatible_shallow_copy_type", TORCH_FN(can_take_over));
  own.impl("fill_.Scalar", TORCH_FN(fill));
  own.impl("zero_", TORCH_FN(zero));
  own.impl("native_batch_norm", TORCH_FN(batch_norm));
  own.impl("convolution_overrideable", TORCH_FN(convolution));
  own.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

}  // namespace device

Traffic traffic(int device) {
  MutexLock lock(device::counters().mutex);
  return device::counters().traffic.at(static_cast<std::size_t>(device));
}

void reset_traffic() {
  MutexLock lock(device::counters().mutex);
  device::counters().traffic = {};
  device::counters().host_waits = {};
}

int host_waits(int device) {
  MutexLock lock(device::counters().mutex);
  return device::counters().host_waits.at(static_cast<std::size_t>(device));
}

}  // namespace lockstep::test
