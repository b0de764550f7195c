// Which ranks make the others wait.
#include "lockstep/report/stragglers.h"

#include <gtest/gtest.h>

#include <limits>

namespace lockstep::report {
namespace {

RankTimes times(int rank, double input, double compute, double communication) {
  return {.rank = rank,
          .host = "node",
          .seconds = {{"input", input}, {"compute", compute}, {"communication", communication}}};
}

TEST(Stragglers, AreRanksWithMoreWorkOfTheirOwn) {
  const std::vector<RankTimes> ranks{times(0, 1, 9, 5), times(1, 5, 9, 1), times(2, 1, 9, 5), times(3, 1, 10.5, 3.5)};
  const auto found = stragglers(ranks);
  ASSERT_EQ(found.size(), 1U);  // rank 3 has 7 % more than the median
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_DOUBLE_EQ(found[0].own_seconds, 14.0);
  EXPECT_DOUBLE_EQ(found[0].median_seconds, 10.75);
  EXPECT_EQ(stragglers_text(found), "rank 1 on node: 30 % more work than the median");
}

TEST(Stragglers, AreNamedWithMostWorkFirstAndAtMostFive) {
  std::vector<RankTimes> ranks;
  for (int rank = 0; rank < 20; ++rank) ranks.push_back(times(rank, 0, rank < 13 ? 1 : rank, 0));
  const auto found = stragglers(ranks);
  ASSERT_EQ(found.size(), 7U);
  EXPECT_EQ(found[0].rank, 19);
  const std::string text = stragglers_text(found);
  EXPECT_TRUE(text.starts_with("rank 19 on node: 1800 % ")) << text;
  EXPECT_TRUE(text.ends_with("; and 2 more")) << text;
}

TEST(Stragglers, AreNotKnownWithoutCommunication) {
  const RankTimes slow{.rank = 0, .seconds = {{"compute and communication", 9}}};
  const RankTimes fast{.rank = 1, .seconds = {{"compute and communication", 1}}};
  EXPECT_TRUE(stragglers(std::vector{slow, fast}).empty());
  EXPECT_TRUE(stragglers(std::vector{times(0, 1, 1, 1)}).empty());
  EXPECT_TRUE(stragglers({}).empty());
  EXPECT_EQ(stragglers_text({}), "");
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(stragglers(std::vector{times(0, kNan, 1, 1), times(1, 0, 1, kNan)}).empty());
}

}  // namespace
}  // namespace lockstep::report
