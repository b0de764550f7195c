#include "reduce/copy_choice.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

struct Costs {
  double plain;
  double streaming;
  double of(CopyWay way) const { return way == CopyWay::kPlain ? plain : streaming; }
};

// How many of `pieces` chunks went the given way.
int count(CopyChoice& choice, CopyWay way, int pieces, Costs costs) {
  int found = 0;
  for (int i = 0; i < pieces; ++i) {
    if (choice.way() == way) ++found;
    choice.record(costs.of(choice.way()));
  }
  return found;
}

constexpr Costs kNear{1.0, 2.0};
constexpr Costs kFar{10.0, 2.0};
constexpr int kFewPieces = CopyChoice::kChunksPerRound * (CopyChoice::kFirstInterval + 2);

TEST(CopyChoice, KeepsTheFasterWayAndTriesTheOtherEverMoreRarely) {
  CopyChoice choice;
  const int early = count(choice, CopyWay::kStreaming, 200, kNear);
  const int late = count(choice, CopyWay::kStreaming, 200, kNear);
  EXPECT_GT(early, 0);
  EXPECT_LT(late, early);
  EXPECT_LE(late, 200 / CopyChoice::kLastInterval + CopyChoice::kChunksPerRound);
}

TEST(CopyChoice, LeavesTheSlowerWayAfterTheFirstTrial) {
  CopyChoice choice;
  count(choice, CopyWay::kPlain, kFewPieces, kFar);
  EXPECT_LE(count(choice, CopyWay::kPlain, 200, kFar), 30);
}

TEST(CopyChoice, NoticesAtOnceWhenTheChosenWayBecomesSlow) {
  CopyChoice choice;
  count(choice, CopyWay::kPlain, 2000, kNear);
  count(choice, CopyWay::kPlain, kFewPieces, kFar);
  EXPECT_EQ(choice.way(), CopyWay::kStreaming);
}

TEST(CopyChoice, FindsInTimeThatTheOtherWayHasBecomeFaster) {
  CopyChoice choice;
  count(choice, CopyWay::kStreaming, 2000, kFar);
  const int pieces = CopyChoice::kChunksPerRound * (CopyChoice::kLastInterval + 2);
  count(choice, CopyWay::kStreaming, pieces, kNear);
  EXPECT_LE(count(choice, CopyWay::kStreaming, 100, kNear), 40);
}

TEST(CopyChoice, AnInterruptedPieceChangesNothing) {
  CopyChoice choice;
  count(choice, CopyWay::kPlain, 2000, kNear);
  const CopyWay before = choice.way();
  choice.record(1000 * kNear.plain);  // the process was not running
  count(choice, CopyWay::kPlain, 2 * CopyChoice::kChunksPerRound, kNear);
  EXPECT_EQ(choice.way(), before);
}

}  // namespace
}  // namespace lockstep::comm
