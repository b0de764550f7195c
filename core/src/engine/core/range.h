// Range: consecutive elements of a buffer, by their numbers.
#pragma once

#include <cstddef>

namespace lockstep::comm {

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;  // not part of it
  std::size_t size() const { return end - begin; }
};

}  // namespace lockstep::comm
