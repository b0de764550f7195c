// The child's part of spawn(): it finds out that it is a child, and reports the outcome of fn.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// "CALL:FD:INODE" in the environment: the call to run, and the pipe for the report. A process that only inherited the
// variable has no pipe with that inode number.
inline constexpr const char* kSpawnVariable = "LOCKSTEP_SPAWN_CHILD";

// The longest exception text that is reported. It fits into a pipe, so the report never blocks.
inline constexpr std::size_t kMaxReportText = std::size_t{32} * 1024;

struct SpawnChild {
  int call = 0;
  Fd report;
  bool running = false;  // inside fn
};

// This process's role; nullptr: not a child of spawn. The first call finds it and removes the variable from the
// environment.
SpawnChild* spawn_child();

// Runs fn and exits.
[[noreturn]] void run_spawn_child(SpawnChild& child, const std::function<void(int rank)>& fn);

// A child's report, which its parent reads after the child has exited.
struct SpawnReport {
  bool started = false;              // it reached the call
  bool finished = false;             // fn returned
  std::optional<std::string> error;  // fn threw
  std::int64_t error_ns = 0;         // when fn threw, by CLOCK_MONOTONIC
};
SpawnReport read_spawn_report(int pipe);

}  // namespace lockstep::launch
