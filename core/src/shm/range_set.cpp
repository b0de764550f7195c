#include "range_set.h"

#include <algorithm>
#include <iterator>

namespace lockstep::comm {

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
