#include "lockstep/base/deadline.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::hours;
using std::chrono::nanoseconds;

TEST(Deadline, NegativeAndHugeMeanNever) {
  for (const Deadline deadline :
       {Deadline::never(), Deadline::after(nanoseconds(-1)), Deadline::after(hours(24 * 366)),
        Deadline::after(nanoseconds::max()), Deadline::after(std::chrono::milliseconds::max()),
        Deadline::after(std::chrono::milliseconds::max() / 2), Deadline::after(hours::max()),
        Deadline::after(std::chrono::milliseconds::min())}) {
    EXPECT_TRUE(deadline.is_never());
    EXPECT_FALSE(deadline.expired());
    EXPECT_EQ(deadline.remaining(), hours(24 * 365));
  }
}

TEST(Deadline, ZeroHasExpiredWithNothingLeft) {
  const Deadline deadline = Deadline::after(nanoseconds(0));
  EXPECT_FALSE(deadline.is_never());
  EXPECT_TRUE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), nanoseconds(0));
}

TEST(Deadline, AtAPointInTime) {
  const auto now = Deadline::Clock::now();
  EXPECT_EQ(Deadline::at(now).when(), now);
  EXPECT_TRUE(Deadline::at(now).expired());
  EXPECT_TRUE(Deadline::at(Deadline::Clock::time_point::max()).is_never());
}

TEST(Deadline, MillisecondsLeftAreRoundedUp) {
  EXPECT_EQ(Deadline::after(nanoseconds(0)).remaining_ms().count(), 0);
  EXPECT_EQ(Deadline::never().remaining_ms(), hours(24 * 365));
  const Deadline soon = Deadline::after(std::chrono::minutes(1));
  EXPECT_GE(soon.remaining_ms(), soon.remaining());
}

TEST(Deadline, CountsDown) {
  const Deadline deadline = Deadline::after(hours(1));
  EXPECT_FALSE(deadline.expired());
  EXPECT_LE(deadline.remaining(), hours(1));
  EXPECT_GT(deadline.remaining(), hours(0));
}

}  // namespace
}  // namespace lockstep
