// The report that a user reads when a worker has failed.
#pragma once

#include <string>
#include <vector>

#include "launch/process/process_tree.h"

namespace lockstep::launch {

struct Failure {
  Exit exit;
  int rank = 0;
  int local_rank = 0;
  int node_rank = -1;  // GROUP_RANK; -1: the job has one node
  std::string host;
  std::string command;
  int attempt = 0;          // the restart count
  int max_restarts = 0;     // the limit of `attempt`
  std::string error;        // the exception that the worker wrote to its error file
  std::string call_stack;   // that exception's
  bool stderr_seen = true;  // false: it went straight to the terminal
  std::vector<std::string> stderr_tail;
};

// Several lines, with no newline at the end.
std::string format_failure(const Failure& failure);

// The code that a shell would return: 128 + number for a signal.
int exit_code_of(const Exit& exit);
// The same for a program that it cannot run.
int exit_code_of(const Status& program);

}  // namespace lockstep::launch
