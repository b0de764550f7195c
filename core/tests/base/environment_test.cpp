#include "lockstep/base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace lockstep {
namespace {

TEST(Environment, AnEmptyValueCountsAsNotSet) {
  const Environment environment({{"RANK", "3"}, {"WORLD_SIZE", ""}});
  EXPECT_EQ(environment.get("RANK"), "3");
  EXPECT_FALSE(environment.has("WORLD_SIZE"));
  EXPECT_FALSE(environment.has("MASTER_ADDR"));
}

TEST(Environment, CopiesTheProcess) {
  ASSERT_EQ(::setenv("LOCKSTEP_TEST_VARIABLE", "a=b", 1), 0);
  const Environment environment = Environment::of_process();
  ASSERT_EQ(::unsetenv("LOCKSTEP_TEST_VARIABLE"), 0);
  EXPECT_EQ(environment.get("LOCKSTEP_TEST_VARIABLE"), "a=b");
  EXPECT_FALSE(Environment::of_process().has("LOCKSTEP_TEST_VARIABLE"));
}

}  // namespace
}  // namespace lockstep
