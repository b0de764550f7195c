#include "lockstep/base/status.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "support/full_disk.h"

namespace lockstep {
namespace {

TEST(Status, SuccessIsEmpty) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_TRUE(status.with_context("rank 1").ok());
  EXPECT_TRUE(Status(ErrorCode::kOk, "ignored").ok());
}

TEST(Status, ContextGoesInFront) {
  const Status status = Status(ErrorCode::kTimeout, "no answer").with_context("all_reduce #4").with_context("rank 1");
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_EQ(status.message(), "rank 1: all_reduce #4: no answer");
}

TEST(Status, ErrnoChoosesTheCode) {
  EXPECT_EQ(Status::from_errno("open a", ENOENT).code(), ErrorCode::kNotFound);
  EXPECT_EQ(Status::from_errno("open a", EACCES).code(), ErrorCode::kPermission);
  EXPECT_EQ(Status::from_errno("open a", EIO).code(), ErrorCode::kIo);
  EXPECT_EQ(Status::from_errno("open a", ENOENT).message(), "open a: No such file or directory");
}

TEST(Status, ErrnoOfALimitNamesIt) {
  const test::FileSizeLimit limit(4096);
  EXPECT_EQ(Status::from_errno("write a", EFBIG).message(),
            "write a: File too large (files of this process may have 4096 bytes; raise the limit: ulimit -f)");
}

TEST(Status, EveryCodeHasAName) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    EXPECT_NE(to_string(static_cast<ErrorCode>(code)), "unknown") << code;
  }
}

Result<int> half(int number) {
  if (number % 2 != 0) return Status(ErrorCode::kInvalidArgument, "odd");
  return number / 2;
}

Result<int> quarter(int number) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int once, half(number));
  LOCKSTEP_RETURN_IF_ERROR(half(once).status());
  return half(once);
}

TEST(Result, HandsErrorsOn) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_FALSE(quarter(5).ok());
}

TEST(Result, FromSuccessfulStatusIsAnInternalError) {
  const Result<int> result{Status()};
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace lockstep
