// Hands out ranges of [0, capacity) and of what is added to it: best fit, neighbours merged when freed. Pure
// bookkeeping; not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::comm {

class RangeAllocator {
 public:
  explicit RangeAllocator(std::size_t capacity);

  // [begin, begin + bytes) is there too. No range reaches from what was there into it where they do not touch.
  void add(std::size_t begin, std::size_t bytes);
  // Offset of a range of at least `bytes`, a multiple of `alignment` (a power of two); nothing when it does not fit.
  std::optional<std::size_t> allocate(std::size_t bytes, std::size_t alignment);
  // Size of the range that is handed out at `offset`; 0 when none is.
  std::size_t size_at(std::size_t offset) const;
  // Size that had been handed out at `offset`; 0 when nothing had.
  std::size_t deallocate(std::size_t offset);

  std::size_t allocated() const { return allocated_; }

 private:
  void insert_free(std::size_t offset, std::size_t bytes);
  void erase_free(std::map<std::size_t, std::size_t>::iterator range);

  std::map<std::size_t, std::size_t> free_by_offset_;
  std::set<std::pair<std::size_t, std::size_t>> free_by_size_;  // (bytes, offset)
  std::map<std::size_t, std::size_t> used_;
  std::size_t largest_;  // of the pieces that were added
  std::size_t allocated_ = 0;
};

}  // namespace lockstep::comm
