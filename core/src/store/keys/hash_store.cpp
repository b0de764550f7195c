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

Status HashStore::set(std::string_view key, std::string_view value) {
  MutexLock lock(state_->mutex);
  LOCKSTEP_RETURN_IF_ERROR(state_->table.set(key, value));
  state_->changed.notify_all();
  return {};
}

Result<Bytes> HashStore::get(std::string_view key, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  MutexLock lock(state_->mutex);
  const std::string name(key);
  LOCKSTEP_RETURN_IF_ERROR(state_->wait({&name, 1}, deadline));
  return *state_->table.find(key);
}

Result<std::int64_t> HashStore::add(std::string_view key, std::int64_t amount) {
  MutexLock lock(state_->mutex);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto sum, state_->table.sum(key, amount));
  LOCKSTEP_RETURN_IF_ERROR(state_->table.set(key, std::to_string(sum)));
  state_->changed.notify_all();
  return sum;
}

Result<Bytes> HashStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(key, desired.size()));
  MutexLock lock(state_->mutex);
  if (state_->table.matches(key, expected)) {
    LOCKSTEP_RETURN_IF_ERROR(state_->table.set(key, desired));
    state_->changed.notify_all();
  }
  const Bytes* value = state_->table.find(key);
  return value == nullptr ? Bytes() : *value;
}

Status HashStore::append(std::string_view key, std::string_view value) {
  MutexLock lock(state_->mutex);
  LOCKSTEP_RETURN_IF_ERROR(state_->table.append(key, value));
  state_->changed.notify_all();
  return {};
}

Status HashStore::wait(std::span<const std::string> keys, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_keys(keys));
  MutexLock lock(state_->mutex);
  return state_->wait(keys, deadline);
}

Result<bool> HashStore::check(std::span<const std::string> keys) {
  LOCKSTEP_RETURN_IF_ERROR(check_keys(keys));
  MutexLock lock(state_->mutex);
  return state_->table.first_missing(keys) == nullptr;
}

Result<bool> HashStore::delete_key(std::string_view key) {
  LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  MutexLock lock(state_->mutex);
  return state_->table.erase(key);
}

Result<std::int64_t> HashStore::num_keys() {
  MutexLock lock(state_->mutex);
  return static_cast<std::int64_t>(state_->table.size());
}

}  // namespace lockstep::comm
