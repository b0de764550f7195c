// spawn: runs a function in several new processes and joins them, like torch.multiprocessing.spawn.
//
// The processes are not forked: LibTorch owns threads, and a forked copy of a program with threads is broken. Each
// process starts this executable again. It runs main() from the top to the same call of spawn (the first, the second,
// ...), runs fn(rank) there, and exits. Therefore:
//  - everything that main() does before the call happens in every process: parsing arguments, opening files. Side
//    effects that must happen once belong after the call, or into fn under `rank == 0`;
//  - every process must reach the same call. A process that exits without reaching it is an error that says so. Earlier
//    calls of spawn return success at once in such a process;
//  - fn captures variables of its own process, not of the parent. A value that the parent computed or read from
//    standard input before the call exists only if main() computes it again. The parent does not see what fn changes;
//  - when fn returns, the process calls std::exit: output is flushed, destructors of static objects and functions
//    registered with atexit run. Destructors of local variables of main() and its callees do not run;
//  - the processes start in the parent's current working directory;
//  - in fn, stdout is line-buffered, also in a file or a pipe: whole lines, and none lost when the process aborts.
//
// fn sees the launcher's environment: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
// LOCKSTEP_JOB_KEY and the others in docs/launching.md. So `env://` works.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::launch {

// Environment variables: names and values.
using Variables = std::vector<std::pair<std::string, std::string>>;

struct SpawnOptions {
  int nprocs = 1;

  // More variables for the processes. They replace variables of the same name that spawn sets.
  Variables environment = {};

  // For all processes together; negative: no limit.
  std::chrono::milliseconds timeout{-1};

  // The time between SIGTERM and SIGKILL for the other processes, after a failure or the timeout.
  std::chrono::milliseconds grace{5000};

  // The processes' command line; the first entry is the program's name. Empty: this process's own.
  std::vector<std::string> argv = {};

  // The number of this call of spawn in the process, from 1; 0: spawn counts itself. Only for programs whose processes
  // reach the call on another path than their parent, such as test runners with a filter in argv.
  int call_number = 0;
};

// Blocks until every process has exited. The processes use the parent's standard output and error. Rank 0 has its
// standard input, the others read /dev/null. Of these three descriptors, spawn opens those that are closed: /dev/null.
//
// A process fails by an exception in fn, an exit code other than 0 or a signal. The first failure is returned as
// kPeerFailed with the rank and the exception's text, and the other processes are stopped. A rank whose exception left
// the scope of a ProcessGroupGuard counts as the first, before ranks that failed because of it. kTimeout names the
// ranks that still ran. kInvalidArgument: nprocs below 1. kUnsupported: called inside fn of another spawn. The
// processes and everything that they started are gone when spawn returns, and when this process dies, also by SIGKILL.
//
// Call it from one thread at a time.
Status spawn(const std::function<void(int rank)>& fn, const SpawnOptions& options);

}  // namespace lockstep::launch
