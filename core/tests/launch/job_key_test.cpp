#include "launch/nodes/job_key.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>

#include "support/scratch_folder.h"

namespace lockstep::launch {
namespace {

class JobKey : public testing::Test {
 protected:
  Result<std::string> key_in(const std::string& text, mode_t mode = 0600) const {
    std::ofstream(path_) << text;
    EXPECT_EQ(::chmod(path_.c_str(), mode), 0);
    return find_job_key(path_, -1);
  }

  const test::ScratchFolder folder_;
  const std::string path_ = folder_.path("key");
};

TEST_F(JobKey, IsTheTextOfItsFileWithoutTheEndOfTheLine) {
  for (const std::string end : {"", "\n", "\r\n"})
    EXPECT_EQ(key_in("a secret of the test" + end).value(), "a secret of the test");
  EXPECT_EQ(key_in("two\nlines\n").value(), "two\nlines");
  EXPECT_EQ(key_in(std::string(4096, 'k') + "\n").value().size(), 4096U);
}

TEST_F(JobKey, ThatOthersMayReadIsRefused) {
  for (const mode_t mode : {0640, 0604, 0602, 0620}) {
    const Status status = key_in("a secret of the test", mode).status();
    EXPECT_EQ(status.code(), ErrorCode::kPermission) << mode;
    EXPECT_NE(status.message().find("chmod 600"), std::string::npos) << status.message();
  }
}

// The workers get the key in their environment: a shorter one, after a zero byte, would be another key.
TEST_F(JobKey, ThatWorkersCannotGetIsRefused) {
  for (const std::string& text : {std::string(), std::string("\n"), std::string("a secret\0 with a zero byte", 26),
                                  std::string(4097, 'k'), "a secret of the test" + std::string(200'000, '\n')}) {
    const Status status = key_in(text).status();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << text.size();
    EXPECT_NE(status.message().find(path_), std::string::npos) << status.message();
  }
  EXPECT_EQ(find_job_key("/dev/zero", -1).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(find_job_key(folder_.path("nothing"), -1).status().code(), ErrorCode::kNotFound);
  ASSERT_EQ(::setenv("LOCKSTEP_JOB_KEY", std::string(4097, 'k').c_str(), 1), 0);
  EXPECT_NE(find_job_key("", -1).status().message().find("LOCKSTEP_JOB_KEY"), std::string::npos);
  ASSERT_EQ(::unsetenv("LOCKSTEP_JOB_KEY"), 0);
}

}  // namespace
}  // namespace lockstep::launch
