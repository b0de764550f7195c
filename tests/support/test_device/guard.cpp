// How LibTorch sees the test device: current devices, streams, events, generators.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <memory>
#include <utility>

#include "support/test_device.h"
#include "support/test_device/kernels.h"
#include "support/test_device/memory.h"
#include "support/test_device/streams.h"

namespace lockstep::test {
namespace device {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

c10::DeviceIndex& current_device() {
  thread_local c10::DeviceIndex index = 0;
  return index;
}

c10::DeviceIndex checked(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kTestDevices, "test device: there is no device test:", static_cast<int>(index),
              "; there are ", kTestDevices);
  return index;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kTestDevices; }

  c10::Device getDevice() const override { return {kType, current_device()}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device(), checked(device.index()))};
  }
  void setDevice(c10::Device device) const override { current_device() = checked(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device() = device.index(); }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(index_of(device)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*isHighPriority*/) const override {
    return next_stream(index_of(device));
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return next_stream(index_of(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    finish(stream);  // so that a loop of queries ends
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    count_host_wait(stream.device_index());
    finish(stream);
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    count_host_wait(checked(index));
    finish_device(index);
  }

  // An event is a MarkerPtr, that of its last record().
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new MarkerPtr;
    *static_cast<MarkerPtr*>(*event) = mark(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) enqueue_wait(stream, *static_cast<MarkerPtr*>(event));
  }
  bool queryEvent(void* event) const override {
    if (event != nullptr) finish(*static_cast<MarkerPtr*>(event));
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    count_host_wait(stream_of(*static_cast<MarkerPtr*>(event)).device_index());
    finish(*static_cast<MarkerPtr*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<MarkerPtr*>(event);
  }
  double elapsedTime(void* /*first*/, void* /*second*/, c10::DeviceIndex /*index*/) const override { return 0; }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get() != nullptr) record_use(data.get(), stream);
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? checked(device.index()) : current_device();
  }
};

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(c10::DeviceIndex index) {
    device_ = c10::Device(kType, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kTestDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device() = checked(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_device(), checked(index));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override { return {kType, checked(device_of(data))}; }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static const auto* const all = new std::array{at::make_generator<Generator>(0), at::make_generator<Generator>(1),
                                                  at::make_generator<Generator>(2), at::make_generator<Generator>(3)};
    static_assert(kTestDevices == 4);
    return all->at(static_cast<std::size_t>(index < 0 ? current_device() : checked(index)));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device() : checked(index));
  }
};

bool register_all() {
  c10::register_privateuse1_backend("test");
  // PyTorch keeps both until the process ends. NOLINTBEGIN(clang-analyzer-cplusplus.NewDeleteLeaks)
  c10::impl::registerDeviceGuard(kType, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(kType, &allocator());
  // NOLINTEND(clang-analyzer-cplusplus.NewDeleteLeaks)
  register_kernels();
  register_autocast();
  return true;
}

}  // namespace
}  // namespace device

void use_test_device() {
  static const bool registered = device::register_all();
  static_cast<void>(registered);
}

c10::Device test_device(int index) {
  return {device::kType, static_cast<c10::DeviceIndex>(index)};
}

std::string test_device_name() {
  return "test";
}

std::vector<int> test_device_counts() {
  return {1, 2, 3, 4};
}

std::vector<std::string> test_device_backends() {
  return {"lockstep"};
}

void prepare_rank(int /*rank*/) {}

c10::ScalarType test_device_float() {
  return c10::kFloat;
}

bool same_result(const at::Tensor& actual, const at::Tensor& expected) {
  return at::equal(actual, expected);
}

}  // namespace lockstep::test
