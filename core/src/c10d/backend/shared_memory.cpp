// The process's arena as LibTorch memory. Every tensor's deleter owns a reference to the arena, which therefore
// outlives groups and static objects for as long as a tensor uses it.
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/backend/staging.h"
#include "c10d/backend/tensor_rules.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

struct Allocation {
  std::shared_ptr<comm::SharedArena> arena;
  std::byte* data;
};

void release(void* context) {
  auto* allocation = static_cast<Allocation*>(context);
  allocation->arena->deallocate(allocation->data);
  delete allocation;
}

class ArenaAllocator final : public c10::Allocator {
 public:
  explicit ArenaAllocator(std::shared_ptr<comm::SharedArena> arena) : arena_(std::move(arena)) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    Result<std::byte*> data = arena_->allocate(bytes);
    if (!data.ok()) throw_status(data.status(), "memory shared with the other ranks");
    auto* allocation = new Allocation{arena_, *data};
    return {*data, allocation, &release, c10::Device(c10::kCPU)};
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override { default_copy_data(dest, src, count); }

 private:
  std::shared_ptr<comm::SharedArena> arena_;
};

struct ProcessArena {
  Mutex mutex;
  std::weak_ptr<comm::SharedArena> arena LOCKSTEP_GUARDED_BY(mutex);
};

ProcessArena& process_arena_slot() {
  static constinit OfProcess<ProcessArena> slot;
  return slot.get();
}

}  // namespace

std::shared_ptr<comm::SharedArena> process_arena() {
  ProcessArena& slot = process_arena_slot();
  MutexLock lock(slot.mutex);
  std::shared_ptr<comm::SharedArena> arena = slot.arena.lock();
  if (arena == nullptr) {
    Result<std::shared_ptr<comm::SharedArena>> created = comm::SharedArena::create();
    if (!created.ok()) throw_status(created.status(), "memory shared with the other ranks");
    arena = std::move(created).value();
    slot.arena = arena;
  }
  return arena;
}

void trim_process_arena() {
  ProcessArena& slot = process_arena_slot();
  std::shared_ptr<comm::SharedArena> arena;
  {
    MutexLock lock(slot.mutex);
    arena = slot.arena.lock();
  }
  if (arena != nullptr) arena->trim();
}

std::shared_ptr<c10::Allocator> arena_allocator() {
  return std::make_shared<ArenaAllocator>(process_arena());
}

at::Tensor make_temporary(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return make_host_memory(tensor);
  if (tensor.is_quantized()) return at::empty_like(tensor, tensor.options(), at::MemoryFormat::Contiguous);
  c10::Storage storage(c10::Storage::use_byte_size_t(), byte_size(tensor),
                       arena_allocator()->allocate(byte_size(tensor)), /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor temporary = at::empty({0}, at::TensorOptions(tensor.scalar_type()));
  return temporary.set_(std::move(storage), 0, tensor.sizes());
}

std::shared_ptr<c10::Allocator> ProcessGroupLockstep::getMemAllocator() {
  return arena_allocator();
}

at::Tensor ProcessGroupLockstep::allocateTensor(long size, at::TensorOptions options) {  // NOLINT(google-runtime-int)
  if (size < 0) throw ArgumentError(ErrorCode::kInvalidArgument, c10::str("allocateTensor: negative size ", size));
  if (!options.device().is_cpu()) {
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        c10::str("allocateTensor: this engine's memory is the CPU's, asked for ", options.device()));
  }
  const auto dtype = options.dtype();
  const std::size_t bytes = static_cast<std::size_t>(size) * dtype.itemsize();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, ArenaAllocator(process_arena()).allocate(bytes),
                       /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor tensor = at::empty({0}, options.requires_grad(std::nullopt));
  tensor.set_(std::move(storage), 0, {size}, {1});
  return options.requires_grad() ? tensor.requires_grad_() : tensor;
}

}  // namespace lockstep
