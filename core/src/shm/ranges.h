// Ranges of an arena: which of them are free (RangeAllocator), and sets of them (RangeSet).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::comm {

// Allocates ranges of [0, capacity) and of the ranges that add() adds: best fit; free neighbours are merged. It only
// records which ranges are free, and touches no memory. Not thread-safe.
class RangeAllocator {
 public:
  explicit RangeAllocator(std::size_t capacity);

  // Adds [begin, begin + bytes). An allocation can span it and earlier ranges only where they touch.
  void add(std::size_t begin, std::size_t bytes);
  // Offset of a range of at least `bytes`, a multiple of `alignment` (a power of two); nothing when none fits.
  std::optional<std::size_t> allocate(std::size_t bytes, std::size_t alignment);
  // Size of the allocation at `offset`; 0 when there is none.
  std::size_t size_at(std::size_t offset) const;
  // Frees the allocation at `offset` and returns its size; 0 when there is none.
  std::size_t deallocate(std::size_t offset);

  std::size_t allocated() const { return allocated_; }
  // Calls each(offset, bytes) for every free range.
  void for_each_free(const std::function<void(std::size_t offset, std::size_t bytes)>& each) const;

 private:
  void insert_free(std::size_t offset, std::size_t bytes);
  void erase_free(std::map<std::size_t, std::size_t>::iterator range);

  std::map<std::size_t, std::size_t> free_by_offset_;
  std::set<std::pair<std::size_t, std::size_t>> free_by_size_;  // (bytes, offset)
  std::map<std::size_t, std::size_t> used_;
  std::size_t largest_;  // of the ranges that were added
  std::size_t allocated_ = 0;
};

// A set of byte offsets, as ranges: neighbours are merged. Not thread-safe.
class RangeSet {
 public:
  void add(std::size_t begin, std::size_t end);
  void remove(std::size_t begin, std::size_t end);
  // Whether all of [begin, end) is in the set.
  bool contains(std::size_t begin, std::size_t end) const;

 private:
  std::map<std::size_t, std::size_t> ranges_;  // begin and end; they do not touch one another
};

}  // namespace lockstep::comm
