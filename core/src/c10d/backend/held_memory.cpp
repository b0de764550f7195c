#include "c10d/backend/held_memory.h"

#include <unordered_map>

#include "lockstep/base/mutex.h"

namespace lockstep {
namespace {

// Several operations may use one storage. The last to end makes it resizable again.
struct Fixed {
  Mutex mutex;
  std::unordered_map<c10::StorageImpl*, int> users LOCKSTEP_GUARDED_BY(mutex);
};

Fixed& all_fixed() {
  static Fixed* const fixed = new Fixed;  // operations may end while the process ends
  return *fixed;
}

// Returns null where the storage is not resizable by itself.
c10::StorageImpl* make_fixed(c10::StorageImpl* storage) {
  Fixed& fixed = all_fixed();
  MutexLock lock(fixed.mutex);
  const auto found = fixed.users.find(storage);
  if (found != fixed.users.end()) {
    ++found->second;
    return storage;
  }
  if (!storage->resizable()) return nullptr;
  fixed.users.emplace(storage, 1);
  storage->set_resizable(false);
  return storage;
}

}  // namespace

HeldMemory::HeldMemory(const at::Tensor& tensor)
    : storage_(tensor.storage()), fixed_(make_fixed(storage_.unsafeGetStorageImpl())) {}

void HeldMemory::MakeResizable::operator()(c10::StorageImpl* storage) const {
  Fixed& fixed = all_fixed();
  MutexLock lock(fixed.mutex);
  const auto found = fixed.users.find(storage);
  if (--found->second > 0) return;
  fixed.users.erase(found);
  storage->set_resizable(true);
}

}  // namespace lockstep
