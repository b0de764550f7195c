#include "ranges.h"

#include <algorithm>
#include <iterator>

namespace lockstep::comm {
namespace {

std::size_t align_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace

RangeAllocator::RangeAllocator(std::size_t capacity) : largest_(capacity) {
  if (capacity > 0) insert_free(0, capacity);
}

void RangeAllocator::add(std::size_t begin, std::size_t bytes) {
  largest_ = std::max(largest_, bytes);
  insert_free(begin, bytes);
}

std::optional<std::size_t> RangeAllocator::allocate(std::size_t bytes, std::size_t alignment) {
  if (bytes > largest_) return std::nullopt;  // and align_up cannot overflow
  bytes = align_up(bytes == 0 ? 1 : bytes, alignment);
  for (auto candidate = free_by_size_.lower_bound({bytes, 0}); candidate != free_by_size_.end(); ++candidate) {
    const auto [range_bytes, range_offset] = *candidate;
    const std::size_t offset = align_up(range_offset, alignment);
    const std::size_t skipped = offset - range_offset;
    if (skipped + bytes > range_bytes) continue;
    erase_free(free_by_offset_.find(range_offset));
    if (skipped > 0) insert_free(range_offset, skipped);
    if (range_bytes > skipped + bytes) insert_free(offset + bytes, range_bytes - skipped - bytes);
    used_.emplace(offset, bytes);
    allocated_ += bytes;
    return offset;
  }
  return std::nullopt;
}

std::size_t RangeAllocator::size_at(std::size_t offset) const {
  const auto used = used_.find(offset);
  return used == used_.end() ? 0 : used->second;
}

std::size_t RangeAllocator::deallocate(std::size_t offset) {
  const auto used = used_.find(offset);
  if (used == used_.end()) return 0;
  const std::size_t freed = used->second;
  used_.erase(used);
  allocated_ -= freed;

  std::size_t start = offset;
  std::size_t bytes = freed;
  const auto after = free_by_offset_.find(offset + freed);
  if (after != free_by_offset_.end()) {
    bytes += after->second;
    erase_free(after);
  }
  auto before = free_by_offset_.lower_bound(offset);
  if (before != free_by_offset_.begin()) {
    before = std::prev(before);
    if (before->first + before->second == offset) {
      start = before->first;
      bytes += before->second;
      erase_free(before);
    }
  }
  insert_free(start, bytes);
  return freed;
}

void RangeAllocator::for_each_free(const std::function<void(std::size_t offset, std::size_t bytes)>& each) const {
  for (const auto& [offset, bytes] : free_by_offset_) each(offset, bytes);
}

void RangeAllocator::insert_free(std::size_t offset, std::size_t bytes) {
  free_by_offset_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void RangeAllocator::erase_free(std::map<std::size_t, std::size_t>::iterator range) {
  free_by_size_.erase({range->second, range->first});
  free_by_offset_.erase(range);
}

void RangeSet::add(std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second >= begin) --at;
  while (at != ranges_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = ranges_.erase(at);
  }
  ranges_.emplace_hint(at, begin, end);
}

void RangeSet::remove(std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second > begin) --at;
  while (at != ranges_.end() && at->first < end) {
    const auto [first, last] = *at;
    at = ranges_.erase(at);
    if (first < begin) ranges_.emplace_hint(at, first, begin);
    if (last > end) at = ranges_.emplace_hint(at, end, last);
  }
}

bool RangeSet::contains(std::size_t begin, std::size_t end) const {
  if (begin >= end) return true;
  const auto after = ranges_.upper_bound(begin);
  return after != ranges_.begin() && std::prev(after)->second >= end;
}

}  // namespace lockstep::comm
