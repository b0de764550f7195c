#include "file_values.h"

#include <ATen/core/Dict.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kMostHashBits = 40;
constexpr std::uint64_t kMostKeyBytes = std::uint64_t{1} << 30;

// Whether each key (sorted) finds a place less than `bits` places after its own, in a table of 2^bits places.
bool fits(const std::vector<std::uint64_t>& sorted, int bits) {
  const std::uint64_t most = static_cast<std::uint64_t>(std::max(bits, 4));
  std::uint64_t free = 0;
  for (const std::uint64_t key : sorted) {
    const std::uint64_t own = key >> (64 - bits);
    free = std::max(free, own);
    if (free - own >= most) return false;
    ++free;
  }
  return true;
}

}  // namespace

void DictGrowth::add(const std::vector<c10::IValue>& keys) {
  constexpr std::uint64_t kSpread =
      11400714819323198485U;  // c10::Dict multiplies hashes by it, and uses the upper bits
  std::vector<std::uint64_t> sorted;
  sorted.reserve(keys.size());
  for (const c10::IValue& key : keys) {
    if (key.isString()) key_bytes_ += key.toStringRef().size();
  }
  if (key_bytes_ > kMostKeyBytes) {
    throw CheckpointError(ErrorCode::kCorrupt,
                          fmt::format("damaged: the keys of its dicts have over {} bytes", kMostKeyBytes));
  }
  for (const c10::IValue& key : keys) sorted.push_back(kSpread * c10::detail::DictKeyHash()(key));
  std::sort(sorted.begin(), sorted.end());
  int bits = 2;
  while ((std::uint64_t{1} << bits) < 2 * sorted.size()) ++bits;
  while (bits < kMostHashBits && !fits(sorted, bits)) ++bits;
  keys_ += keys.size();
  places_ += std::uint64_t{1} << bits;
  constexpr std::uint64_t kAlways = std::uint64_t{1} << 22;
  if (places_ > kAlways + 64 * keys_) {
    throw CheckpointError(ErrorCode::kCorrupt, "damaged: the keys of its dicts are chosen to take all memory");
  }
}

c10::impl::GenericDict DictGrowth::make(const std::vector<std::pair<c10::IValue, c10::IValue>>& entries) {
  std::vector<c10::IValue> keys;
  keys.reserve(entries.size());
  for (const auto& [key, value] : entries) keys.push_back(key);
  add(keys);
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [key, value] : entries) dict.insert_or_assign(key, value);
  return dict;
}

}  // namespace lockstep::checkpoint
