// Which deaths a job survives.
#include "launch/job/roster.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using Then = Roster::Then;

TEST(Roster, GoesOnWhileEnoughAreLeft) {
  Roster roster(4, 2, 0);
  EXPECT_EQ(roster.died(1), Then::kGoOn);
  EXPECT_EQ(roster.ended(0), Then::kGoOn);
  EXPECT_EQ(roster.died(3), Then::kGoOn);
  EXPECT_EQ(roster.left(), 2);
  EXPECT_EQ(roster.died(2), Then::kTooFew);
}

TEST(Roster, ReplacesWhileThereIsSomebodyToJoin) {
  Roster roster(2, 2, 2);
  EXPECT_EQ(roster.died(0), Then::kReplace);
  EXPECT_TRUE(roster.is_newcomer(0));
  EXPECT_EQ(roster.left(), 2);
  EXPECT_EQ(roster.died(0), Then::kReplace) << "a newcomer is replaced too";
  EXPECT_FALSE(roster.replaces());
  EXPECT_EQ(roster.died(0), Then::kTooFew);
}

TEST(Roster, NewcomersAloneHaveNothingToGoOnWith) {
  Roster roster(2, 1, 5);
  EXPECT_EQ(roster.died(0), Then::kReplace);
  EXPECT_EQ(roster.died(1), Then::kTooFew);
  Roster joined(2, 1, 5);
  EXPECT_EQ(joined.died(0), Then::kReplace);
  joined.joined(0);
  EXPECT_EQ(joined.died(1), Then::kReplace);
}

TEST(Roster, NobodyIsReplacedWhenOneHasEnded) {
  Roster roster(3, 1, 5);
  EXPECT_EQ(roster.died(0), Then::kReplace);
  EXPECT_EQ(roster.ended(1), Then::kGoOn);
  EXPECT_EQ(roster.died(2), Then::kGoOn);
  EXPECT_TRUE(roster.newcomers_wait_in_vain());
  EXPECT_EQ(roster.died(0), Then::kGoOn);
  EXPECT_EQ(roster.left(), 1);
}

TEST(Roster, ANewcomerThatWasNotNeededDoesNotCount) {
  Roster roster(2, 2, 1);
  EXPECT_EQ(roster.died(0), Then::kReplace);
  EXPECT_EQ(roster.ended(1), Then::kGoOn);
  EXPECT_EQ(roster.ended(0), Then::kTooFew);
  Roster failed(2, 1, 1);
  EXPECT_EQ(failed.died(0), Then::kReplace);
  EXPECT_EQ(failed.not_replaced(0), Then::kGoOn);
}

}  // namespace
}  // namespace lockstep::launch
