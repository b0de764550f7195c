// The parts of event files that need no TensorBoard.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "lockstep/report/summary_writer.h"
#include "report/tensorboard/events.h"

namespace lockstep::report {
namespace {

// The values of RFC 3720, appendix B.4.
TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string up;
  for (char c = 0; c < 32; ++c) up += c;
  EXPECT_EQ(crc32c(up), 0x46dd794eU);
}

TEST(Histogram, CountsEveryFiniteValueOnce) {
  const std::vector<float> values = {-1e38F, -1.0F, -1e-20F, 0.0F, 1e-20F, 1.0F, 1.0F, 1e38F};
  const auto counted = histogram(values);
  ASSERT_TRUE(counted.has_value());
  EXPECT_EQ(counted->count, 8);
  EXPECT_EQ(counted->limits.size(), counted->counts.size());
  double sum = 0.0;
  for (const double count : counted->counts) sum += count;
  EXPECT_EQ(sum, 8.0);
  EXPECT_EQ(counted->counts.front(), 0.0);
  EXPECT_TRUE(std::is_sorted(counted->limits.begin(), counted->limits.end()));
  EXPECT_FALSE(histogram({}).has_value());
}

TEST(Histogram, OfOneValueHasOneBin) {
  const std::vector<float> values = {0.5F};
  const auto counted = histogram(values);
  ASSERT_EQ(counted->counts.size(), 2U);
  EXPECT_LE(counted->limits[0], 0.5);
  EXPECT_GT(counted->limits[1], 0.5);
}

TEST(SummaryWriter, WithoutAFolderWritesNothing) {
  SummaryWriter writer;
  writer.add_scalar("loss", 1.0, 0);
  writer.add_image("picture", data::Image(), 0);
  writer.flush();
  EXPECT_TRUE(writer.path().empty());
  EXPECT_TRUE(writer.status().ok());
}

}  // namespace
}  // namespace lockstep::report
