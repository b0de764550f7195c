#include "lockstep/nn/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep {
namespace {

// Three ranks with 5, 2 and no samples: the mean of their means would be wrong.
TEST(Average, IsExactOverUnevenRanks) {
  Average first;
  first.add(3.0, 4.0);
  first.add(1.0);
  Average second;
  second.add(0.0, 2.0);
  const Average third;
  const Average all(first.packed() + second.packed() + third.packed());
  EXPECT_EQ(all.value(), 4.0 / 7.0);
  EXPECT_EQ(all.count(), 7.0);
  first.merge(second);
  EXPECT_EQ(first.value(), all.value());
  EXPECT_TRUE(std::isnan(third.value()));
}

TEST(Average, CountsLargeNumbersExactly) {
  Average average;
  average.add(16777217.0, 33554433.0);  // more than float could hold
  EXPECT_EQ(Average(average.packed()).sum(), 16777217.0);
}

}  // namespace
}  // namespace lockstep
