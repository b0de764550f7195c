#include "lockstep/store/store.h"

#include "store/keys/key_value_table.h"

namespace lockstep::comm {

Status Store::multi_set(std::span<const std::string> keys, std::span<const Bytes> values) {
  LOCKSTEP_RETURN_IF_ERROR(check_pairs(keys, values));
  for (std::size_t i = 0; i < keys.size(); ++i) LOCKSTEP_RETURN_IF_ERROR(set(keys[i], values[i]));
  return {};
}

Result<std::vector<Bytes>> Store::multi_get(std::span<const std::string> keys, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(wait(keys, deadline));
  std::vector<Bytes> values;
  values.reserve(keys.size());
  for (const auto& key : keys) {
    LOCKSTEP_ASSIGN_OR_RETURN(auto value, get(key, deadline));
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace lockstep::comm
