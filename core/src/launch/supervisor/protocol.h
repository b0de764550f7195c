// The protocol between the launcher and its supervisor. The launcher carries the supervisor's program, so both have the
// same version: plain structs in native byte order are enough.
//
//   launcher -> supervisor, once: a plan in a memfd (the programs to start).
//   supervisor -> launcher: Event messages; launcher -> supervisor: Order messages. Both use one SOCK_SEQPACKET pair.
//
// When the launcher's end of that pair closes or its pidfd becomes readable, the supervisor kills all descendants
// and exits.
#pragma once

#include <sched.h>

#include <cstdint>

namespace lockstep::launch::supervisor {

// The memfd holds a PlanHeader, the path of the folder that the supervisor removes if the launcher dies (empty: none),
// then for each worker a WorkerHeader and NUL-terminated strings: the executable's path, `argument_count` arguments
// (the first is the program's name), `environment_count` entries "NAME=value". The strings of a worker take
// `string_bytes`, padded to a multiple of 8.
struct PlanHeader {
  std::int32_t launcher_pid;
  std::uint32_t worker_count;
  std::uint64_t folder_bytes;  // of the path with its NUL, padded to a multiple of 8
};

struct WorkerHeader {
  std::int32_t standard_fds[3];  // the supervisor's descriptors that become the worker's 0, 1 and 2
  std::int32_t report_fd;        // stays open under the same number; -1: none
  std::uint32_t argument_count;
  std::uint32_t environment_count;
  std::uint32_t pinned;  // 1: `cpus` is the worker's affinity
  std::uint32_t string_bytes;
  std::uint32_t low_priority;  // 1: nice 19, where it can be taken back, and the first to end when memory runs out
  cpu_set_t cpus;
};

enum class EventKind : std::int32_t {
  kStarted,      // detail: pid
  kStartFailed,  // detail: errno of execve
  kExited,       // code: CLD_EXITED, CLD_KILLED or CLD_DUMPED; detail: exit code or signal
  kFailed,       // the supervisor itself failed; detail: errno
  kAlive,        // a descendant that could not be killed, or has not died yet; detail: pid
  kEmpty,        // no other descendant is left; the last message
  kStuck,        // the descendants of the kAlive messages live after the limit; kEmpty may follow
};

struct Event {
  EventKind kind;
  std::int32_t index;
  std::int32_t code;
  std::int32_t detail;
  std::int64_t monotonic_ns;  // CLOCK_MONOTONIC when the supervisor saw it
};

enum class OrderKind : std::int32_t {
  kSignal,  // send `signal` to the process group of `worker`, if this worker still runs
  kEnd,     // send SIGKILL to every descendant; then kEmpty, or kStuck when that takes longer than the limit
};

constexpr std::int32_t kEveryWorker = -1;

struct Order {
  OrderKind kind;
  std::int32_t signal;
  std::int32_t worker;  // its index in the plan, or kEveryWorker
  std::int32_t limit_ms;
};

}  // namespace lockstep::launch::supervisor
