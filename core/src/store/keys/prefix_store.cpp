#include "lockstep/store/prefix_store.h"

#include <utility>

namespace lockstep::comm {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> inner)
    : prefix_(std::move(prefix)), inner_(std::move(inner)) {}

std::string PrefixStore::full(std::string_view key) const {
  std::string result;
  result.reserve(prefix_.size() + 1 + key.size());
  return result.append(prefix_).append(1, '/').append(key);
}

std::vector<std::string> PrefixStore::full(std::span<const std::string> keys) const {
  std::vector<std::string> result;
  result.reserve(keys.size());
  for (const auto& key : keys) result.push_back(full(key));
  return result;
}

Status PrefixStore::set(std::string_view key, std::string_view value) {
  return inner_->set(full(key), value);
}

Status PrefixStore::set_by(std::string_view key, std::string_view value, Deadline deadline) {
  return inner_->set_by(full(key), value, deadline);
}

Result<Bytes> PrefixStore::get(std::string_view key, Deadline deadline) {
  return inner_->get(full(key), deadline);
}

Result<std::int64_t> PrefixStore::add(std::string_view key, std::int64_t amount) {
  return inner_->add(full(key), amount);
}

Result<Bytes> PrefixStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  return inner_->compare_set(full(key), expected, desired);
}

Status PrefixStore::append(std::string_view key, std::string_view value) {
  return inner_->append(full(key), value);
}

Status PrefixStore::wait(std::span<const std::string> keys, Deadline deadline) {
  return inner_->wait(full(keys), deadline);
}

Result<bool> PrefixStore::check(std::span<const std::string> keys) {
  return inner_->check(full(keys));
}

Result<bool> PrefixStore::delete_key(std::string_view key) {
  return inner_->delete_key(full(key));
}

Result<std::int64_t> PrefixStore::num_keys() {
  return inner_->num_keys();
}

Status PrefixStore::multi_set(std::span<const std::string> keys, std::span<const Bytes> values) {
  return inner_->multi_set(full(keys), values);
}

Result<std::vector<Bytes>> PrefixStore::multi_get(std::span<const std::string> keys, Deadline deadline) {
  return inner_->multi_get(full(keys), deadline);
}

}  // namespace lockstep::comm
