// What the launcher and its supervisor say to one another. Both are built from the same source tree and the
// supervisor's program is carried inside the launcher, so there are no versions to reconcile: plain structs, native
// byte order.
//
//   launcher -> supervisor, once: a Plan in a memfd (which programs to start, with what).
//   supervisor -> launcher: Event messages.   launcher -> supervisor: Order messages.   Both on one SOCK_SEQPACKET
//   pair.
//
// The launcher's end of that pair closes, or the launcher's pidfd becomes readable: the supervisor kills all and
// leaves.
#pragma once

#include <sched.h>

#include <cstdint>

namespace lockstep::launch::supervisor {

// The memfd holds a PlanHeader, then for each worker a WorkerHeader and its strings, each ended by NUL: the
// executable's path, `argument_count` arguments (the program's name is the first), `environment_count` entries
// "NAME=value". The strings of a worker take `string_bytes`, padded to a multiple of 8.
struct PlanHeader {
  std::int32_t launcher_pid;
  std::uint32_t worker_count;
};

struct WorkerHeader {
  std::int32_t standard_fds[3];  // what becomes 0, 1 and 2; numbers in the supervisor
  std::int32_t report_fd;        // stays open under its own number; -1: none
  std::uint32_t argument_count;
  std::uint32_t environment_count;
  std::uint32_t pinned;  // 1: `cpus` is the worker's affinity
  std::uint32_t string_bytes;
  cpu_set_t cpus;
};

enum class EventKind : std::int32_t {
  kStarted,      // detail: pid
  kStartFailed,  // detail: errno of execve
  kExited,       // code: CLD_EXITED, CLD_KILLED or CLD_DUMPED; detail: exit code or signal
  kFailed,       // the supervisor itself could not do its work; detail: errno
  kLeft,         // a descendant that could not be ended, or not yet; detail: pid
  kEmpty,        // no other descendant is left; the last message
  kStuck,        // after so long descendants are left, those told by kLeft; kEmpty may follow
};

struct Event {
  EventKind kind;
  std::int32_t index;
  std::int32_t code;
  std::int32_t detail;
  std::int64_t monotonic_ns;  // CLOCK_MONOTONIC when the supervisor learnt of it
};

enum class OrderKind : std::int32_t {
  kSignal,  // to every worker that still runs, and to its process group
  kEnd,     // SIGKILL for every descendant; then kEmpty, or kStuck when that takes longer than the limit
};

struct Order {
  OrderKind kind;
  std::int32_t signal;
  std::int32_t limit_ms;
};

}  // namespace lockstep::launch::supervisor
