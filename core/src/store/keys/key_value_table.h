// The keys and values of one store, and the rules that all stores share. Not thread-safe: its owner has the lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

class KeyValueTable {
 public:
  enum class Change : std::uint32_t { kSet = 1, kErase = 2, kAppend = 3 };  // the numbers are those of store files
  void apply(Change change, std::string_view key, std::string_view value);

  using Write = std::function<Status(Change, std::string_view key, std::string_view value)>;
  // Answers a call, whose keys are there if it waits for them. `write` makes the changes: it calls apply().
  Result<StoreAnswer> answer(const StoreCall& call, const Write& write) const;

  const Bytes* find(std::string_view key) const;  // null when absent; valid until the next change
  // The value that add would set. The caller sets it (or logs it first).
  Result<std::int64_t> sum(std::string_view key, std::int64_t amount) const;
  // Returns how many keys there were.
  std::int64_t erase_prefix(std::string_view prefix);
  void clear() { entries_.clear(); }

  // The first of `keys` that is absent.
  const std::string* first_missing(std::span<const std::string> keys) const;
  // kTimeout that names the absent ones of `keys`; `where` names the store.
  Status timeout(std::span<const std::string> keys, std::string_view where) const;

 private:
  std::map<std::string, Bytes, std::less<>> entries_;
};

// Limits and rules for arguments; kInvalidArgument when broken.
Status check_limits(const StoreCall& call);
Status check_entry(std::string_view key, std::size_t value_bytes);

// "'a', 'b' and 7 more"; at most 10 are spelled out.
std::string quote_keys(std::span<const std::string> keys);

}  // namespace lockstep::comm
