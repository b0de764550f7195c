// Forks of a test's process.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <exception>

#include "support/process.h"

namespace lockstep::test {

// How a child ended, as a shell says it. After a minute it is killed, and the result is -1.
inline int end_of(pid_t child) {
  int status = 0;
  if (!wait_for([&] { return waitpid(child, &status, WNOHANG) != 0; })) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs fn() in a fork, which then ends at once; its exit code is the result of fn().
template <typename Function>
pid_t fork_to(const Function& fn) {
  const pid_t child = fork();
  if (child == 0) _exit(fn());
  return child;
}

template <typename Function>
int in_fork(const Function& fn) {
  return end_of(fork_to(fn));
}

// Runs fn() as a rank that may be killed: in a fork, so that its death by SIGKILL is no failure of the test.
template <typename Function>
void run_mortal(const Function& fn) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      fn();
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
