// Forks of a test's process.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/process.h"

namespace lockstep::test {

// How a child ended, as a shell tells it; -1, and killed, if it has not after 20 s.
inline int end_of(pid_t child) {
  int status = 0;
  if (!wait_for([&] { return waitpid(child, &status, WNOHANG) != 0; })) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs fn() in a fork, which ends at once with what that answers.
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

}  // namespace lockstep::test
