// ProcessTree: a group of worker processes and everything they start. They end together.
//
// The supervisor (supervisor/main.cpp) is the workers' parent. It kills all descendants, also those that forked twice
// or called setsid: at end(), when the ProcessTree is destroyed, and when this process dies, also by SIGKILL. Each
// worker leads its own session and process group.
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

// One program to start. The caller keeps the descriptors and may close them after start() has returned.
struct Command {
  std::string executable;                // a path; PATH is not searched
  std::vector<std::string> arguments;    // the first is the program's name
  std::vector<std::string> environment;  // "NAME=value", the whole environment
  int stdin_fd = 0;
  int stdout_fd = 1;
  int stderr_fd = 2;
  int report_fd = -1;         // a descriptor that stays open in the worker under the same number; -1: none
  std::vector<int> cpus;      // the cores it may run on; empty: those of this process
  bool low_priority = false;  // nice 19, where this user may take it back, and oom_score_adj 1000
};

// How a worker exited.
struct Exit {
  int index = 0;  // in the list of commands
  pid_t pid = 0;
  int code = 0;    // exit code, if signal is 0
  int signal = 0;  // the signal that killed it, or 0
  bool core_dumped = false;
  std::chrono::nanoseconds run_time{0};
  std::chrono::steady_clock::time_point when;

  bool failed() const { return signal != 0 || code != 0; }
};

class ProcessTree {
 public:
  // Starts all commands in order. Blocks until each runs its program (under a millisecond each, unless its file system
  // hangs). If one cannot be started, the others are killed and the error names its index and executable: kNotFound,
  // kPermission or kInvalidArgument (no program) because of the executable, kIo otherwise. The launcher's own errors
  // have other codes than these three. kAborted: `interrupt_fd` became readable meanwhile.
  // `folder`: files that are of no use without this process. If it is killed, the supervisor removes them and the
  // folder. Empty: none.
  static Result<ProcessTree> start(std::span<const Command> commands, int interrupt_fd = -1,
                                   const std::string& folder = {});

  // The halves of start(): begin() does not wait for the programs. Before await_started(), with the same commands, has
  // succeeded, only end() may be called.
  static Result<ProcessTree> begin(std::span<const Command> commands, const std::string& folder = {});
  // kTimeout: not all have been started by then.
  Status await_started(std::span<const Command> commands, int interrupt_fd = -1, Deadline deadline = Deadline::never());

  // Somebody may have stopped the supervisor.
  void wake_supervisor() const;
  // The workers' run times count from now.
  void restart_clocks();

  ProcessTree(ProcessTree&&) noexcept = default;
  ProcessTree& operator=(ProcessTree&&) = delete;
  // Calls end().
  ~ProcessTree();

  // Readable (POLLIN) when next_exit has an exit or an error to return.
  int fd() const { return socket_.get(); }
  const std::vector<pid_t>& pids() const { return pids_; }
  int running() const { return running_; }

  // The next worker that has exited, in order of time; nullopt: none yet. Does not block. An error (kInternal) means
  // that the supervisor is dead. The workers are then dead too.
  Result<std::optional<Exit>> next_exit();

  // Sends a signal to the process group of every running worker, or of the running worker with this index.
  Status signal(int number, std::optional<int> index = {});

  // Sends SIGKILL to every descendant. Returns when none is left. kTimeout names those that we may not signal, or those
  // that have not died after `limit`; the supervisor stays until these die. Exits that were not yet fetched are lost.
  // Idempotent.
  Status end(std::chrono::milliseconds limit = kEndTimeout);

  static constexpr std::chrono::seconds kEndTimeout{30};

 private:
  ProcessTree(Fd socket, pid_t supervisor, std::size_t count);
  Status await_empty(std::chrono::milliseconds limit);
  // Waits for the supervisor's exit, which its last message has announced.
  void reap_supervisor();
  Status send_order(int kind, int signal_number, int worker, std::chrono::milliseconds limit);

  Fd socket_;
  pid_t supervisor_ = -1;
  std::vector<pid_t> pids_;
  std::vector<std::chrono::steady_clock::time_point> started_;
  int running_ = 0;
};

// "SIGKILL"; "signal 64" for one without a name.
std::string signal_name(int number);

// "exit code 3", "signal SIGSEGV (11)", "signal SIGSEGV (11), core dumped".
std::string describe_exit(const Exit& exit);

}  // namespace lockstep::launch
