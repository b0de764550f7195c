#include "gradient_placement.h"

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/graph_task.h>

#include <unordered_map>

#include "lockstep/base/fork.h"

namespace lockstep::nn_detail {
namespace {

// The flag outlives the pointer: a thread still allocates and frees memory while its objects are destroyed.
thread_local bool any_active = false;
struct Active {
  std::weak_ptr<GradientPlacement> placement;
  ~Active() { any_active = false; }
};
thread_local Active active;

// The slots that tensors own now, by address: the deleter gets nothing else.
class Occupied {
 public:
  // Forks free tensors too.
  Occupied() { hold_during_forks(mutex_.native()); }

  void add(std::shared_ptr<Slot> slot) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    slots_[slot->data] = std::move(slot);
  }
  bool remove(void* data) LOCKSTEP_EXCLUDES(mutex_) {
    std::shared_ptr<Slot> slot;  // destroyed after the unlock: that may free the bucket
    MutexLock lock(mutex_);
    const auto found = slots_.find(data);
    if (found == slots_.end()) return false;
    slot = std::move(found->second);
    slots_.erase(found);
    slot->busy.store(false, std::memory_order_release);
    return true;
  }

 private:
  Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Slot>> slots_ LOCKSTEP_GUARDED_BY(mutex_);
};

Occupied& occupied() {
  static Occupied& instance = *new Occupied;  // tensors may be freed after static objects are gone
  return instance;
}

// The CPU allocator with slots in front of it. LibTorch keeps a plain pointer to it, so it is never destroyed, and
// other threads may find it there without any synchronisation: what they read of it is static and atomic.
class PlacingAllocator final : public c10::Allocator {
 public:
  explicit PlacingAllocator(c10::Allocator* base) {
    base_of_deleter_.store(base->raw_deleter(), std::memory_order_release);
    base_.store(base, std::memory_order_release);
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (!any_active || bytes < GradientPlacement::kMinBytes) return base().allocate(bytes);
    // Gradients come from backward passes. Activations live long and must not get a slot.
    if (torch::autograd::get_current_graph_task_id() < 0) return base().allocate(bytes);
    const auto placement = active.placement.lock();
    if (!placement || !placement->is_this_process() || !placement->is_active_here()) return base().allocate(bytes);
    if (auto slot = placement->take(bytes)) {
      void* data = slot->data;
      occupied().add(std::move(slot));
      return {data, data, &release, c10::Device(c10::kCPU)};
    }
    c10::DataPtr plain = base().allocate(bytes);
    placement->note(bytes, plain.get());
    return plain;
  }

  // Callers of raw_allocate pass the bare address to this.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { base().copy_data(to, from, bytes); }

 private:
  static c10::Allocator& base() { return *base_.load(std::memory_order_acquire); }
  static void release(void* data) {
    if (data == nullptr || occupied().remove(data)) return;
    if (const c10::DeleterFnPtr free = base_of_deleter_.load(std::memory_order_acquire)) free(data);
  }

  static inline std::atomic<c10::Allocator*> base_{nullptr};
  static inline std::atomic<c10::DeleterFnPtr> base_of_deleter_{nullptr};
};

void install_once() {
  static const bool installed = [] {
    static PlacingAllocator& allocator = *new PlacingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(&allocator, /*priority=*/1);
    return true;
  }();
  (void)installed;
}

}  // namespace

GradientPlacement::Pause::Pause() : was_active_(std::exchange(any_active, false)) {}

GradientPlacement::Pause::~Pause() {
  any_active = was_active_;
}

void GradientPlacement::begin() {
  install_once();
  {
    MutexLock lock(mutex_);
    thread_ = std::this_thread::get_id();
    counts_.clear();
    seen_.clear();
  }
  active.placement = weak_from_this();
  any_active = true;
}

void GradientPlacement::end() {
  {
    MutexLock lock(mutex_);
    thread_ = {};
  }
  if (active.placement.lock().get() != this) return;  // another model has begun since
  active.placement.reset();
  any_active = false;
}

bool GradientPlacement::is_active_here() {
  MutexLock lock(mutex_);
  return thread_ == std::this_thread::get_id();
}

void GradientPlacement::learn(std::size_t index, const void* data, std::size_t bytes) {
  MutexLock lock(mutex_);
  const auto seen = seen_.find(data);
  if (seen == seen_.end() || seen->second.bytes != bytes) return;
  const Allocation now = seen->second;
  std::optional<Allocation>& known = expected_[index];
  if (known) {
    const auto place = parameter_of_.find({known->bytes, known->nth});
    if (place != parameter_of_.end() && place->second == index) parameter_of_.erase(place);
  }
  known = now;
  parameter_of_[{now.bytes, now.nth}] = index;
}

void GradientPlacement::set_slot(std::size_t index, std::shared_ptr<Slot> slot) {
  MutexLock lock(mutex_);
  slots_[index] = std::move(slot);
}

std::shared_ptr<Slot> GradientPlacement::take(std::size_t bytes) {
  MutexLock lock(mutex_);
  const auto found = parameter_of_.find({bytes, counts_[bytes]});
  if (found == parameter_of_.end()) return nullptr;
  const std::shared_ptr<Slot>& slot = slots_[found->second];
  // Autograd adds to an existing gradient in place: its memory must not be given away.
  if (!slot || slot->sealed.load(std::memory_order_relaxed) || slot->bytes != bytes ||
      parameters_[found->second].grad().defined())
    return nullptr;
  if (slot->busy.exchange(true, std::memory_order_acq_rel)) return nullptr;
  seen_[slot->data] = {bytes, counts_[bytes]++};
  return slot;
}

void GradientPlacement::note(std::size_t bytes, const void* data) {
  MutexLock lock(mutex_);
  seen_[data] = {bytes, counts_[bytes]++};
}

}  // namespace lockstep::nn_detail
