#include "store/keys/key_value_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/number_text.h"
#include "lockstep/store/limits.h"

namespace lockstep::comm {

Status KeyValueTable::set(std::string_view key, std::string_view value) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(key, value.size()));
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    found->second.assign(value);
  } else {
    entries_.emplace(key, value);
  }
  return {};
}

const Bytes* KeyValueTable::find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

Result<std::int64_t> KeyValueTable::sum(std::string_view key, std::int64_t amount) const {
  LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  std::int64_t before = 0;
  if (const Bytes* text = find(key)) {
    const auto counter = number_from_text<std::int64_t>(*text);
    if (!counter) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("add to key '{}': its value is not a decimal counter ({} bytes); use add only on keys "
                                "that were made by add or set to a number",
                                key, text->size()));
    }
    before = *counter;
  }
  std::int64_t after = 0;
  if (__builtin_add_overflow(before, amount, &after)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("add to key '{}': {} + {} does not fit in 64 bits", key, before, amount));
  }
  return after;
}

bool KeyValueTable::matches(std::string_view key, std::string_view expected) const {
  const Bytes* value = find(key);
  return value == nullptr ? expected.empty() : *value == expected;
}

Status KeyValueTable::check_append(std::string_view key, std::string_view value) const {
  const Bytes* before = find(key);
  return check_entry(key, (before == nullptr ? 0 : before->size()) + value.size());
}

Status KeyValueTable::append(std::string_view key, std::string_view value) {
  LOCKSTEP_RETURN_IF_ERROR(check_append(key, value));
  const auto found = entries_.find(key);
  if (found == entries_.end()) return set(key, value);
  found->second.append(value);
  return {};
}

bool KeyValueTable::erase(std::string_view key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  entries_.erase(found);
  return true;
}

const std::string* KeyValueTable::first_missing(std::span<const std::string> keys) const {
  const auto found = std::find_if(keys.begin(), keys.end(), [this](const auto& key) { return find(key) == nullptr; });
  return found == keys.end() ? nullptr : &*found;
}

Status KeyValueTable::timeout(std::span<const std::string> keys, std::string_view where) const {
  std::vector<std::string> missing;
  for (const auto& key : keys) {
    if (find(key) == nullptr) missing.push_back(key);
  }
  return {ErrorCode::kTimeout, fmt::format("timed out waiting in {}; nobody has set {}", where, quote_keys(missing))};
}

Status check_key(std::string_view key) {
  if (key.size() <= kMaxKeyBytes) return {};
  return {ErrorCode::kInvalidArgument, fmt::format("a store key has at most {} bytes, found {}: '{}...'", kMaxKeyBytes,
                                                   key.size(), key.substr(0, 60))};
}

Status check_keys(std::span<const std::string> keys) {
  for (const std::string& key : keys) LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  return {};
}

Status check_entry(std::string_view key, std::size_t value_bytes) {
  LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  if (value_bytes <= kMaxValueBytes) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("a store value has at most {} bytes, found {} for key '{}'; send large data with a collective",
                      kMaxValueBytes, value_bytes, key)};
}

Status check_pairs(std::span<const std::string> keys, std::span<const Bytes> values) {
  if (keys.size() != values.size()) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("multi_set needs one value per key, found {} keys and {} values", keys.size(), values.size())};
  }
  for (std::size_t i = 0; i < keys.size(); ++i) LOCKSTEP_RETURN_IF_ERROR(check_entry(keys[i], values[i].size()));
  return {};
}

std::string quote_keys(std::span<const std::string> keys) {
  constexpr std::size_t kShown = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kShown); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", keys[i]);
  }
  if (keys.size() > kShown) text += fmt::format(" and {} more", keys.size() - kShown);
  return text;
}

}  // namespace lockstep::comm
