// The parts of event files that need no TensorBoard.
#include <gtest/gtest.h>

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

TEST(SummaryWriter, WithoutAFolderWritesNothing) {
  SummaryWriter writer;
  writer.add_scalar("loss", 1.0, 0);
  writer.flush();
  EXPECT_TRUE(writer.path().empty());
  EXPECT_TRUE(writer.status().ok());
}

}  // namespace
}  // namespace lockstep::report
