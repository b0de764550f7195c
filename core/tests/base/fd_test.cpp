#include "lockstep/base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>

namespace lockstep {
namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

class FdTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0); }
  std::array<int, 2> ends_{};
};

TEST_F(FdTest, ClosesWhenItGoesAway) {
  {
    const Fd reader(ends_[0]);
    const Fd writer(ends_[1]);
    EXPECT_TRUE(reader.valid());
    EXPECT_TRUE(is_open(ends_[0]));
  }
  EXPECT_FALSE(is_open(ends_[0]));
  EXPECT_FALSE(is_open(ends_[1]));
}

TEST_F(FdTest, MovingHandsOwnershipOn) {
  Fd first(ends_[0]);
  Fd second(ends_[1]);
  second = std::move(first);  // closes what it had
  EXPECT_FALSE(is_open(ends_[1]));
  EXPECT_EQ(second.get(), ends_[0]);
  Fd third(std::move(second));
  EXPECT_EQ(third.release(), ends_[0]);
  EXPECT_FALSE(third.valid());
  EXPECT_TRUE(is_open(ends_[0]));
  third.reset(ends_[0]);
  third.reset();
  EXPECT_FALSE(is_open(ends_[0]));
}

}  // namespace
}  // namespace lockstep
