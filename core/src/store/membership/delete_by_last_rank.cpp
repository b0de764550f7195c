#include "store/membership/delete_by_last_rank.h"

namespace lockstep::comm {

void delete_by_last_rank(Store& store, const std::string& counter, int group_size, std::span<const std::string> keys) {
  const auto calls = store.add(counter, 1);
  if (!calls.ok() || calls.value() < group_size) return;
  for (const std::string& key : keys) static_cast<void>(store.delete_key(key));
  static_cast<void>(store.delete_key(counter));
}

}  // namespace lockstep::comm
