#include "support/test_device/memory.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "lockstep/base/mutex.h"
#include "support/test_device.h"
#include "support/test_device/streams.h"

namespace lockstep::test {
namespace device {
namespace {

constexpr std::size_t kAddresses = std::size_t{16} << 30;  // for the life of the process: no memory is behind them
constexpr std::size_t kLine = 64;

std::size_t lines(std::size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

std::byte* host_memory(std::size_t bytes) {
  void* memory = std::aligned_alloc(kLine, lines(bytes));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, kFreshByte, bytes);
  return static_cast<std::byte*>(memory);
}

struct Block {
  std::byte* address;
  std::size_t bytes;
  c10::DeviceIndex device;
  std::byte* memory;
  std::vector<c10::Stream> streams;
};

class Blocks {
 public:
  Blocks() {
    void* range = ::mmap(nullptr, kAddresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(range != MAP_FAILED, "test device: no address space: ", std::strerror(errno));
    next_ = static_cast<std::byte*>(range);
    end_ = next_ + kAddresses;
  }

  std::byte* add(std::size_t bytes, c10::Stream stream) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    TORCH_CHECK(lines(bytes) + kLine <= static_cast<std::size_t>(end_ - next_), "test device: all addresses are used");
    std::byte* const address = next_;
    next_ += lines(bytes) + kLine;  // neighbours are never one range
    blocks_[address] = {address, bytes, stream.device_index(), host_memory(bytes), {stream}};
    return address;
  }

  void remove(const std::byte* address) LOCKSTEP_EXCLUDES(mutex_) {
    std::vector<c10::Stream> streams;
    {
      MutexLock lock(mutex_);
      streams = blocks_.at(address).streams;
    }
    for (const c10::Stream stream : streams) finish(stream);
    MutexLock lock(mutex_);
    const auto found = blocks_.find(address);
    std::free(found->second.memory);
    blocks_.erase(found);
  }

  void record_use(const void* address, c10::Stream stream) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (Block* const block = find(address)) block->streams.push_back(stream);
  }

  std::byte* open(const void* address, std::size_t bytes, c10::DeviceIndex device) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Block* const block = find(address);
    TORCH_CHECK(block != nullptr, "test device: a copy or kernel on test:", static_cast<int>(device),
                " uses memory at ", address,
                " that was freed or never allocated; a tensor that another stream uses needs record_stream");
    TORCH_CHECK(block->device == device, "test device: memory of test:", static_cast<int>(block->device),
                " used as if it were of test:", static_cast<int>(device));
    const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) - block->address);
    TORCH_CHECK(bytes <= block->bytes - offset, "test device: ", bytes, " bytes at ", offset, " of a block of ",
                block->bytes);
    return block->memory + offset;
  }

  c10::DeviceIndex device_of(const void* address) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const Block* const block = find(address);
    return block == nullptr ? c10::DeviceIndex{-1} : block->device;
  }

  int count(int device) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    int count = 0;
    for (const auto& [address, block] : blocks_) count += block.device == device ? 1 : 0;
    return count;
  }

 private:
  Block* find(const void* address) LOCKSTEP_REQUIRES(mutex_) {
    auto after = blocks_.upper_bound(static_cast<const std::byte*>(address));
    if (after == blocks_.begin()) return nullptr;
    Block& block = std::prev(after)->second;
    return static_cast<const std::byte*>(address) < block.address + block.bytes ? &block : nullptr;
  }

  Mutex mutex_;
  std::map<const std::byte*, Block> blocks_ LOCKSTEP_GUARDED_BY(mutex_);
  std::byte* next_ LOCKSTEP_GUARDED_BY(mutex_);
  std::byte* end_ LOCKSTEP_GUARDED_BY(mutex_);
};

Blocks& blocks() {
  static auto* const all = new Blocks;  // tensors may be freed until the process ends
  return *all;
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device = c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)->getDevice();
    if (bytes == 0) return {nullptr, device};
    std::byte* const address = blocks().add(bytes, current_stream(device.index()));
    const auto free = [](void* context) { blocks().remove(static_cast<const std::byte*>(context)); };
    return {address, address, free, device};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    const c10::DeviceIndex to_device = blocks().device_of(to);
    const c10::DeviceIndex from_device = blocks().device_of(from);
    finish(current_stream(from_device));
    finish(current_stream(to_device));
    std::memcpy(open(to, bytes, to_device), open(from, bytes, from_device), bytes);
  }
};

struct PinnedRanges {
  Mutex mutex;
  std::map<const std::byte*, std::size_t> sizes LOCKSTEP_GUARDED_BY(mutex);
};

PinnedRanges& pinned_ranges() {
  static auto* const all = new PinnedRanges;
  return *all;
}

// A copy that waits in a stream keeps the memory.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    std::byte* const memory = host_memory(bytes);
    {
      PinnedRanges& all = pinned_ranges();
      MutexLock lock(all.mutex);
      all.sizes[memory] = bytes;
    }
    return {memory, memory, &give_back, c10::Device(c10::kCPU)};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void give_back(void* memory) {
    {
      PinnedRanges& all = pinned_ranges();
      MutexLock lock(all.mutex);
      all.sizes.erase(static_cast<const std::byte*>(memory));
    }
    std::free(memory);
  }
};

}  // namespace

c10::Allocator& allocator() {
  static auto* const only = new DeviceAllocator;
  return *only;
}

std::byte* open(const void* address, std::size_t bytes, c10::DeviceIndex device) {
  return blocks().open(address, bytes, device);
}

c10::DeviceIndex device_of(const void* address) {
  return blocks().device_of(address);
}

void record_use(const void* address, c10::Stream stream) {
  blocks().record_use(address, stream);
}

c10::Allocator& pinned_allocator() {
  static auto* const only = new PinnedAllocator;
  return *only;
}

bool is_pinned(const void* address) {
  PinnedRanges& all = pinned_ranges();
  MutexLock lock(all.mutex);
  auto after = all.sizes.upper_bound(static_cast<const std::byte*>(address));
  if (after == all.sizes.begin()) return false;
  --after;
  return static_cast<const std::byte*>(address) < after->first + after->second;
}

}  // namespace device

int allocated_blocks(int device) {
  return device::blocks().count(device);
}

}  // namespace lockstep::test
