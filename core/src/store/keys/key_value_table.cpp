#include "store/keys/key_value_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/number_text.h"
#include "lockstep/store/limits.h"

namespace lockstep::comm {
namespace {

Status check_key(std::string_view key) {
  if (key.size() <= kMaxKeyBytes) return {};
  return {ErrorCode::kInvalidArgument, fmt::format("a store key has at most {} bytes, found {}: '{}...'", kMaxKeyBytes,
                                                   key.size(), key.substr(0, 60))};
}

}  // namespace

void KeyValueTable::apply(Change change, std::string_view key, std::string_view value) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    if (change != Change::kErase) entries_.emplace(key, value);
    return;
  }
  switch (change) {
    case Change::kSet: found->second.assign(value); break;
    case Change::kErase: entries_.erase(found); break;
    case Change::kAppend: found->second.append(value); break;
  }
}

Result<StoreAnswer> KeyValueTable::answer(const StoreCall& call, const Write& write) const {
  using Op = StoreCall::Op;
  StoreAnswer answer;
  switch (call.op) {
    case Op::kSet:
      for (std::size_t i = 0; i < call.keys.size(); ++i) {
        LOCKSTEP_RETURN_IF_ERROR(write(Change::kSet, call.keys[i], call.values[i]));
      }
      break;
    case Op::kGet:
      for (const std::string& key : call.keys) answer.values.push_back(*find(key));
      break;
    case Op::kAdd: {
      LOCKSTEP_ASSIGN_OR_RETURN(answer.number, sum(call.keys[0], call.amount));
      LOCKSTEP_RETURN_IF_ERROR(write(Change::kSet, call.keys[0], std::to_string(answer.number)));
      break;
    }
    case Op::kCompareSet: {
      const Bytes* value = find(call.keys[0]);
      const bool matches = (value == nullptr ? Bytes() : *value) == call.values[0];
      if (matches) LOCKSTEP_RETURN_IF_ERROR(write(Change::kSet, call.keys[0], call.values[1]));
      answer.values.push_back(matches ? call.values[1] : value == nullptr ? Bytes() : *value);
      break;
    }
    case Op::kAppend: {
      const Bytes* before = find(call.keys[0]);
      LOCKSTEP_RETURN_IF_ERROR(
          check_entry(call.keys[0], (before == nullptr ? 0 : before->size()) + call.values[0].size()));
      LOCKSTEP_RETURN_IF_ERROR(write(Change::kAppend, call.keys[0], call.values[0]));
      break;
    }
    case Op::kWait: break;
    case Op::kCheck: answer.number = first_missing(call.keys) == nullptr ? 1 : 0; break;
    case Op::kDelete:
      if (find(call.keys[0]) == nullptr) break;
      LOCKSTEP_RETURN_IF_ERROR(write(Change::kErase, call.keys[0], ""));
      answer.number = 1;
      break;
    case Op::kNumKeys: answer.number = static_cast<std::int64_t>(entries_.size()); break;
  }
  return answer;
}

const Bytes* KeyValueTable::find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

std::int64_t KeyValueTable::erase_prefix(std::string_view prefix) {
  const auto first = entries_.lower_bound(prefix);
  const auto last =
      std::find_if(first, entries_.end(), [&](const auto& one) { return !one.first.starts_with(prefix); });
  const std::int64_t count = std::distance(first, last);
  entries_.erase(first, last);
  return count;
}

Result<std::int64_t> KeyValueTable::sum(std::string_view key, std::int64_t amount) const {
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

Status check_entry(std::string_view key, std::size_t value_bytes) {
  LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  if (value_bytes <= kMaxValueBytes) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("a store value has at most {} bytes, found {} for key '{}'; send large data with a collective",
                      kMaxValueBytes, value_bytes, key)};
}

Status check_limits(const StoreCall& call) {
  for (const std::string& key : call.keys) LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  for (std::size_t i = 0; i < call.values.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(check_entry(call.keys[call.op == StoreCall::Op::kSet ? i : 0], call.values[i].size()));
  }
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
