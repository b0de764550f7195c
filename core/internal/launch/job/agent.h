// The agent of one node: runs a worker group, relays its output, and ends all workers together.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/host.h"
#include "launch/output/stream_choice.h"
#include "lockstep/base/status.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/store/endpoint.h"

namespace lockstep::launch {

// Where the store is served in which the launchers meet.
enum class StorePlace {
  kByAddress,  // the launcher whose machine has the endpoint's address, unless a store is there already
  kHere,
  kElsewhere,
};

// How the launchers of a job over several nodes find one another.
struct MeetingOptions {
  comm::Endpoint endpoint = {};  // where the launchers meet
  StorePlace store_place = StorePlace::kByAddress;
  // The job's secret; "-": the first line of standard input; empty: LOCKSTEP_JOB_KEY, else the user's key in the home
  // directory.
  std::string job_key_file = {};
  std::string run_id = {};      // empty: that of the launcher that serves the store
  std::string local_addr = {};  // where the others reach this machine; empty: the address that reaches the endpoint
  // A launcher that the store has not heard of for this time is lost. Kernels answer, not processes. The job goes on
  // within 3 s then: some 0.5 s may pass until the first packet is missed, and the workers have to start again.
  std::chrono::milliseconds silence{2000};
};

// A job over several nodes. One launcher runs on each.
struct NodesOptions {
  int min_nodes = 1;
  int max_nodes = 1;
  int node_rank = -1;  // -1: by the order of joining
  MeetingOptions meeting = {};
  std::chrono::milliseconds join_timeout = std::chrono::minutes(10);  // for the fewest nodes to come together
  std::chrono::milliseconds last_call = std::chrono::seconds(30);     // for more, once these are there
  bool same_command = true;  // nodes with another program or other arguments are refused
  bool reports = true;       // tells the user what the job does; false: another node on the same terminal does
  std::string version = {};  // of this launcher; nodes with another are refused
};

struct JobOptions {
  std::vector<std::string> command;  // the program (found in PATH) and its arguments; the same for every worker
  int workers = 1;

  std::string master_addr = loopback_address();
  int master_port = 0;   // 0: the kernel chooses a free port
  std::string run_id{};  // TORCHELASTIC_RUN_ID and the name of the log folder; empty: random
  std::string role = "default";

  // How often the worker group is restarted after a failure. Each attempt has a new store, port and log folder.
  int max_restarts = 0;

  // A worker that fails does not end the job while at least as many workers run, are being replaced or have ended with
  // 0. 0: every failure ends the job. For jobs of one node.
  int min_workers = 0;
  // How many workers that failed are replaced by newcomers (lockstep/launch/newcomer.h) in each attempt. Needs
  // min_workers.
  int max_newcomers = 0;

  // How long the workers run before one more process for each is loaded, for a restart or as a newcomer
  // (standby/standby.h). nullopt: never.
  std::optional<std::chrono::milliseconds> standby_after = std::chrono::seconds(3);

  // After a failure or a signal, the time between SIGTERM (or that signal) and SIGKILL.
  std::chrono::milliseconds grace{5000};
  // After SIGKILL, how long to wait for processes to die. The rest (waiting for a disk or a device) is named and left.
  std::chrono::milliseconds end_timeout{30'000};

  // Each worker gets its share of the cores. No effect with more workers than cores.
  bool pin_cores = true;
  // By local rank, the cores of each worker, instead of equal shares; an empty list means all. Empty: equal shares.
  std::vector<std::vector<int>> worker_cores{};
  // For OMP_NUM_THREADS; 0: those that this process may use.
  int cores = 0;
  // By local rank, more variables for each worker; they win over inherited ones. Empty: none.
  std::vector<Variables> worker_variables{};

  // A worker's stdout is a pseudo-terminal, unless it is the launcher's own. Then C and C++ programs write each line
  // when the line ends. false: a pipe or a log file, for programs that write at once anyway.
  bool stdout_terminals = true;

  // Streams that go to log_dir/run_id/attempt_N/RANK/{stdout,stderr}.log, instead of the launcher's own output
  // (redirects) or in addition to it (tee). If log_dir is empty, such streams go to a new folder in $TMPDIR, which is
  // named on stderr.
  std::string log_dir{};
  // Where dumps of the workers' flight recorders go, when a worker has failed, when a group breaks and at SIGUSR1:
  // dump_dir/run_id/attempt_N/rank_R.flight. An absolute path; empty: nowhere.
  std::string dump_dir{};
  // Where the launcher answers HTTP requests for the job's numbers, in the text of Prometheus; 0: the kernel chooses a
  // port; nullopt: nowhere.
  std::optional<int> metrics_port{};
  std::string metrics_address = loopback_address();
  // From how many percent of the time on the launcher names a rank for which the others wait. 0: it never does.
  double slow_rank = 10;
  NodesOptions nodes{};
  StreamChoice redirects{};
  StreamChoice tee{};
  // Workers whose output goes to the launcher's own; empty: all.
  std::vector<int> shown_local_ranks{};
};

// Runs the job, or this node's part of it, to its end; blocks. With several nodes every launcher returns the same code.
// Returns the launcher's exit code: 0; that of the worker that failed first (128 + number for a signal); 128 + number
// of the signal that asked this process to end, or 137 if workers did not end in the grace time; 127 if the program is
// not there, 126 if it cannot be executed. Failures of workers and of the program's start are reported on stderr. An
// error Status means that the job could not be run for another reason.
//
// It takes over the process while it runs: it handles SIGTERM, SIGINT, SIGHUP and SIGQUIT, ignores SIGPIPE, uses the
// standard streams, and kills every child of this process if the job could not be run to its end. When it returns and
// when this process dies, everything that the workers started is gone; it names processes that could not be killed. A
// reader that stops reading the output does not block it, nor does a disk under log files: after the job it waits for
// them until they have taken nothing for `grace` (1 s at least), and after a signal no longer than that for each.
Result<int> run_job(const JobOptions& options);

}  // namespace lockstep::launch
