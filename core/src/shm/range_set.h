// A set of byte offsets, as ranges: neighbours are merged. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>

namespace lockstep::comm {

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
