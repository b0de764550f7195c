// How workers and jobs fail, for the user: reports, torchelastic's error files, and the kernel's lack of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/job/agent.h"
#include "launch/output/log_files.h"
#include "launch/process/process_tree.h"
#include "launch/process/signal_watch.h"
#include "lockstep/base/fd.h"

namespace lockstep::launch {

// The report that a user reads when a worker has failed.
struct Failure {
  Exit exit;
  int rank = 0;
  int local_rank = 0;
  int node_rank = -1;  // GROUP_RANK; -1: the job has one node
  std::string host;
  std::string command;
  int attempt = 0;           // the restart count
  int max_restarts = 0;      // the limit of `attempt`
  std::string error;         // the exception: from the worker's error file, or from what it wrote to stderr
  std::string call_stack;    // that exception's
  bool is_newcomer = false;  // had not joined the others
  bool stderr_seen = true;   // false: it went straight to the terminal
  std::vector<std::string> stderr_tail;
};

// Several lines, with no newline at the end. `what`: "failed" where the job goes on.
std::string format_failure(const Failure& failure, std::string_view what = "failed first");

// The code that a shell would return: 128 + number for a signal.
int exit_code_of(const Exit& exit);
// The same for a program that it cannot run.
int exit_code_of(const Status& program);

// torchelastic's error files, in which workers (Python's @record) write their exceptions, in a folder of their own.
// Workers find their files by the path, as torchrun's workers do, also where another process has started the worker, in
// namespaces of its own or as another user.
class ErrorFiles {
 public:
  ErrorFiles() = default;
  // Removes the folder. If this process is killed, its supervisors do (ProcessTree::begin).
  ~ErrorFiles();
  ErrorFiles(const ErrorFiles&) = delete;
  ErrorFiles& operator=(const ErrorFiles&) = delete;

  // A new file: the value of TORCHELASTIC_ERROR_FILE. The first call makes the folder, in /dev/shm or else in $TMPDIR,
  // whose disk may block this call, the destructor and read_error_file. Where neither can be written or has 1 MiB free,
  // the value is empty, and workers write no error files.
  std::string make_file();
  // Empty before the first file.
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  Fd lock_;
};

// The exception's text and its call stack go into the failure. Nothing happens if the worker wrote nothing, or
// something else.
void read_error_file(const std::string& path, Failure& failure);

// What a launcher writes of the first failure of its job, in the same format. `reason`: for a job that no worker has
// ended; then `failure` is nullptr.
std::string error_report(const Failure* failure, const std::string& reason, int exit_code);

// Whether the kernel has ended a process for lack of memory. A worker that ends by SIGKILL cannot say so itself.
struct MemoryKills {
  std::string place;  // "control group /sys/fs/cgroup/job", or "machine"; empty: not known
  std::uint64_t count = 0;
};

// How many processes the kernel has ended for lack of memory: in the control group of this process, or on the machine
// if the group does not say. The files are as for control_groups(), and /proc/vmstat.
MemoryKills memory_kills(const std::string& memberships = "/proc/self/cgroup",
                         const std::string& mount = "/sys/fs/cgroup", const std::string& vmstat = "/proc/vmstat");

// For a worker that SIGKILL has ended; empty: there were no more of them than `before`.
std::string lack_of_memory(const MemoryKills& before, const MemoryKills& now);

// How a job ended, for its launcher.
struct JobEnd {
  int code = 0;
  bool signalled = false;               // the launcher itself, which must not stay for long then
  std::optional<Failure> failure = {};  // the first failure of a worker, after which nothing was started again
  std::string reason = {};              // why the job ended, if no worker failed
};

// Writes the first failure in torchelastic's format: to TORCHELASTIC_ERROR_FILE, where another launcher has set that
// for this one, and with --log-dir to LOG_DIR/RUN_ID/error.json. After success it removes the latter file of an earlier
// job. Gives up on a disk that does not answer, as LogFiles does. Errors are warnings.
void write_error_report(const JobOptions& options, const std::string& run_id, const JobEnd& end, LogFiles* logs,
                        SignalWatch& signals);

}  // namespace lockstep::launch
