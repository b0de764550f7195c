// Ranks of a test that may kill themselves.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>

namespace lockstep::test {

// The rank is a fork of its process, so that its death is no failure of the test.
inline void run_mortal(const std::function<void()>& rank) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      rank();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
}

}  // namespace lockstep::test
