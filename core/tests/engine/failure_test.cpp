// The texts of failures that follow from others.
#include "engine/core/failure.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

const std::string kDeath = "rank 2 (pid 7) died in barrier #1 of group 'a'";
const std::string kLeft = "rank 0 left group 'b'";
const std::string kBoth = kDeath + ". After that " + kLeft;

TEST(Failure, BeginsWithItsCauseOnce) {
  EXPECT_EQ(caused("", kLeft), kLeft);
  EXPECT_EQ(caused(kDeath, kLeft), kBoth);
  EXPECT_EQ(caused(kDeath, kBoth), kBoth);
  EXPECT_EQ(first_cause(kBoth), kDeath);
  EXPECT_EQ(first_cause(kDeath), kDeath);
}

TEST(Failure, ATextThatFitsStaysAsItIs) {
  EXPECT_EQ(shortened(kDeath, kDeath.size()), kDeath);
  EXPECT_EQ(shortened("", 10), "");
}

// To every length: the first cause is found again, in full or shortened, and is not repeated.
TEST(Failure, AShortenedTextStillTellsItsFirstCause) {
  for (std::size_t bytes = 30; bytes <= kBoth.size(); ++bytes) {
    SCOPED_TRACE(bytes);
    const std::string passed_on = shortened(kBoth, bytes);
    ASSERT_LE(passed_on.size(), bytes);
    const std::string cause = first_cause(passed_on);
    if (cause.ends_with("...")) {
      EXPECT_TRUE(kDeath.starts_with(cause.substr(0, cause.size() - 3))) << cause;
    } else {
      EXPECT_EQ(cause, kDeath);
    }
    EXPECT_EQ(caused(cause, kBoth), kBoth);
    EXPECT_EQ(shortened(passed_on, bytes), passed_on);
  }
}

TEST(Failure, AWordThatIsTooLongIsCut) {
  EXPECT_EQ(shortened(std::string(100, 'x'), 10), "xxxxxxx...");
}

}  // namespace
}  // namespace lockstep::comm
