// ProcessTree: a group of worker processes and everything they start, ended as one.
//
// Between this process and the workers stands the supervisor (supervisor/main.cpp): it ends all descendants, also those
// that forked twice or called setsid, when the tree is told to end, when the ProcessTree is destroyed, and when this
// process dies in whatever way. Each worker leads a session and process group of its own.
//
// Not thread-safe. A tree belongs to the process that started it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// One program to start. The descriptors stay the caller's, who may close them once start() has returned.
struct Command {
  std::string executable;                // a path; no search is done
  std::vector<std::string> arguments;    // with the program's name in front
  std::vector<std::string> environment;  // "NAME=value", the whole environment
  int stdin_fd = 0;
  int stdout_fd = 1;
  int stderr_fd = 2;
  int report_fd = -1;     // one more descriptor, open in the worker under the same number
  std::vector<int> cpus;  // the cores it may run on; empty: those of this process
};

// How a worker left.
struct Exit {
  int index = 0;  // place in the list of commands
  pid_t pid = 0;
  int code = 0;    // exit code, when signal is 0
  int signal = 0;  // the signal that ended it, or 0
  bool core_dumped = false;
  std::chrono::nanoseconds run_time{0};
  std::chrono::steady_clock::time_point when;

  bool failed() const { return signal != 0 || code != 0; }
};

class ProcessTree {
 public:
  // Starts all commands, in order; blocks until each runs its program (under a millisecond each, unless its file system
  // stands still). When one cannot be started, the others are ended again and the error (kNotFound, kPermission or kIo)
  // names the command's index and executable. kAborted when `interrupt_fd` became readable meanwhile.
  static Result<ProcessTree> start(std::span<const Command> commands, int interrupt_fd = -1);

  ProcessTree(ProcessTree&&) noexcept = default;
  ProcessTree& operator=(ProcessTree&&) = delete;
  // Ends what still runs; blocks until it is gone (at most kEndTimeout).
  ~ProcessTree();

  // Readable (POLLIN) when next_exit has something to tell.
  int fd() const { return socket_.get(); }
  const std::vector<pid_t>& pids() const { return pids_; }
  int running() const { return running_; }

  // The next worker that has left, in order of time; none yet: nullopt. Does not block. An error (kInternal) means that
  // the supervisor is gone; the workers are then dead as well.
  Result<std::optional<Exit>> next_exit();

  // Sends a signal to every running worker's process group.
  Status signal(int number);

  // SIGKILL for every descendant; returns when none is left, or kTimeout, with who is: those that we may not signal,
  // and after `limit` those that have not died. The supervisor stays with these. Exits that were not yet fetched are
  // lost. Idempotent.
  Status end(std::chrono::milliseconds limit = kEndTimeout);

  static constexpr std::chrono::seconds kEndTimeout{30};

 private:
  ProcessTree(Fd socket, pid_t supervisor, std::size_t count);
  Status await_started(std::span<const Command> commands, int interrupt_fd);
  Status await_empty(std::chrono::milliseconds limit);
  // Waits until the supervisor has left, which it has said it does.
  void reap_supervisor();
  Status send_order(int kind, int signal_number, std::chrono::milliseconds limit);

  Fd socket_;
  pid_t supervisor_ = -1;
  std::vector<pid_t> pids_;
  std::vector<std::chrono::steady_clock::time_point> started_;
  int running_ = 0;
};

}  // namespace lockstep::launch
