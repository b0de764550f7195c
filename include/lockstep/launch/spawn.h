// spawn: runs a function in several fresh processes and joins them, like torch.multiprocessing.spawn.
//
// The processes are not forked: LibTorch owns threads, and a forked copy of a program with threads is broken. Each is
// this executable started anew. It runs main() again from the top, and when it arrives at the same call of spawn (the
// first, the second, ...) it runs fn(rank) there, and then leaves. What follows from that:
//  - what main() does before the call, it does in every process: parse arguments, open files. Side effects that must
//    happen once belong behind the call, or inside fn behind `rank == 0`;
//  - the way to the call must not depend on anything that differs in the processes. A process that ends without
//    arriving there is an error that says so. Calls of spawn that came earlier are skipped there: they return success
//    at once;
//  - fn runs with variables captured in that process, not with the parent's: what the parent computed or read from
//    standard input before the call is there only if main() computes it again. What fn changes, the parent does not
//    see;
//  - when fn returns, the process leaves by std::exit: output is flushed, destructors of static objects and functions
//    registered with atexit run; destructors of local variables of main() and its callees do not;
//  - the processes are started in the parent's present working directory.
//
// In fn the environment is the launcher's: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
// LOCKSTEP_JOB_KEY and the others of docs/launching.md, so that `env://` initialisation works.
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

  // More variables for the processes; they win over those that spawn sets.
  Variables environment = {};

  // For all processes together; negative: no limit.
  std::chrono::nanoseconds timeout{-1};

  // After a failure or the timeout, how long the other processes have between SIGTERM and SIGKILL.
  std::chrono::milliseconds grace{5000};

  // The processes' command line with the program's name in front; empty: this process's own.
  std::vector<std::string> argv = {};

  // Which call of spawn this is, counted from 1 over the life of the process; 0: spawn counts itself. Only for programs
  // whose processes arrive at the call by another way than their parent did, such as test runners with a filter in
  // argv.
  int call_number = 0;
};

// Blocks until every process has left. The processes use the parent's standard output and error; standard input goes to
// rank 0, the others read /dev/null.
//
// An exception in fn, an exit code other than 0 or a signal: the first of them in time comes back as kPeerFailed,
// naming the rank and the exception's text; the other processes are stopped. Where an exception left a
// ProcessGroupGuard's scope, that rank's counts as the first, not that of a rank which failed of it. kTimeout names the
// ranks that were still running. kInvalidArgument: nprocs below 1. kUnsupported: called inside fn of another spawn. The
// processes and all that they started are gone when spawn returns, and also when this process dies, in whatever way.
//
// Call it from one thread at a time.
Status spawn(const std::function<void(int rank)>& fn, const SpawnOptions& options);

}  // namespace lockstep::launch
