#include "lockstep/store/hash_store.h"

#include <string>

#include "lockstep/base/mutex.h"
#include "store/keys/key_value_table.h"

namespace lockstep::comm {

struct HashStore::State {
  Mutex mutex;
  CondVar changed;
  KeyValueTable table LOCKSTEP_GUARDED_BY(mutex);

  Status wait(std::span<const std::string> keys, Deadline deadline) LOCKSTEP_REQUIRES(mutex) {
    while (table.first_missing(keys) != nullptr) {
      if (deadline.is_never()) {
        changed.wait(mutex);
      } else if (deadline.expired()) {
        return table.timeout(keys, "the in-process store");
      } else {
        changed.wait_until(mutex, deadline.when());
      }
    }
    return {};
  }
};

HashStore::HashStore() : state_(std::make_unique<State>()) {}
HashStore::~HashStore() = default;

Result<StoreAnswer> HashStore::answer(StoreCall call) {
  MutexLock lock(state_->mutex);
  if (call.waits()) LOCKSTEP_RETURN_IF_ERROR(state_->wait(call.keys, call.deadline));
  const auto write = [this](KeyValueTable::Change change, std::string_view key, std::string_view value)
                         LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
                           state_->table.apply(change, key, value);
                           state_->changed.notify_all();
                           return Status();
                         };
  return state_->table.answer(call, write);
}

}  // namespace lockstep::comm
