// RangeSet against a naive model.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "shm/ranges.h"

namespace lockstep::comm {
namespace {

TEST(RangeSet, HoldsWhatWasAddedAndNotRemoved) {
  constexpr std::size_t kOffsets = 40;
  std::mt19937 random(1);
  std::uniform_int_distribution<std::size_t> offset(0, kOffsets);
  std::uniform_int_distribution<int> coin(0, 1);
  RangeSet set;
  std::vector<bool> model(kOffsets, false);
  for (int step = 0; step < 5'000; ++step) {
    const auto [begin, end] = std::minmax({offset(random), offset(random)});
    const bool adds = coin(random) == 1;
    if (adds) {
      set.add(begin, end);
    } else {
      set.remove(begin, end);
    }
    std::fill(model.begin() + std::ptrdiff_t(begin), model.begin() + std::ptrdiff_t(end), adds);
    const auto [first, last] = std::minmax({offset(random), offset(random)});
    const bool all = std::all_of(model.begin() + std::ptrdiff_t(first), model.begin() + std::ptrdiff_t(last),
                                 [](bool in) { return in; });
    ASSERT_EQ(set.contains(first, last), all) << "step " << step << ", [" << first << ", " << last << ")";
  }
}

}  // namespace
}  // namespace lockstep::comm
