// The child's half of spawn(): knowing that it is one, and reporting what became of fn.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// "CALL:FD:INODE" in the environment: which call to run, and the pipe for the report. The pipe's inode number tells a
// child from a process that merely inherited the variable.
inline constexpr const char* kSpawnVariable = "LOCKSTEP_SPAWN_CHILD";

// The longest exception text that is handed on; a pipe holds it whole, so reporting never blocks.
inline constexpr std::size_t kMaxReportText = 32 * 1024;

struct SpawnChild {
  int call = 0;
  Fd report;
  bool running = false;  // inside fn
};

// This process's role, found at the first call and kept; nullptr in a process that is no child of spawn. Takes the
// variable out of the environment.
SpawnChild* spawn_child();

// Runs fn and leaves the process.
[[noreturn]] void run_spawn_child(SpawnChild& child, const std::function<void(int rank)>& fn);

// What a child wrote, as its parent reads it after the child has left.
struct SpawnReport {
  bool started = false;              // it arrived at the call
  bool finished = false;             // fn returned
  std::optional<std::string> error;  // fn threw
  std::int64_t error_ns = 0;         // when, by CLOCK_MONOTONIC
};
SpawnReport read_spawn_report(int pipe);

}  // namespace lockstep::launch
