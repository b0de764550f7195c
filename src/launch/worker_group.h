// WorkerGroup: one generation of a job's workers, from start to the end of the last process.
#pragma once

#include <optional>
#include <vector>

#include "launch/agent.h"
#include "launch/failure_report.h"
#include "launch/process_tree.h"
#include "launch/relay.h"
#include "launch/signal_watch.h"
#include "launch/worker_environment.h"

namespace lockstep::launch {

// How a generation ended; neither: every worker left with 0.
struct GroupEnd {
  std::optional<Failure> failure;  // the first
  int signal = 0;                  // the launcher was told to end
  Status left_behind;              // what was not done: workers not started, processes that could not be ended
};

class WorkerGroup {
 public:
  WorkerGroup(const JobOptions& options, const JobFacts& job, Consoles& consoles, SignalWatch& signals)
      : options_(options), job_(job), consoles_(consoles), signals_(signals), relay_(consoles) {}

  // Blocks until no process of the group is left, as far as they can be ended, and its output is relayed. An error: it
  // could not be run.
  Result<GroupEnd> run();

 private:
  Result<std::vector<Command>> make_commands(int null_fd);
  // One round of waiting and handling; false when the group is to be ended now.
  Result<bool> step(ProcessTree& tree);
  Status take_exits(ProcessTree& tree);
  void take_exit(ProcessTree& tree, const Exit& exit);
  // The worker that has claimed to be where the failure began and has not left yet.
  std::optional<int> claimed_by_running() const;
  // False: this is the second time of asking.
  bool take_signal(ProcessTree& tree);
  void begin_stop(ProcessTree& tree, int signal_number);
  void note_failure(const Exit& exit);

  const JobOptions& options_;
  const JobFacts& job_;
  Consoles& consoles_;
  SignalWatch& signals_;
  Relay relay_;
  GroupEnd end_;
  std::vector<bool> left_;           // by local rank
  std::optional<int> awaited_;       // the local rank in which the failure began, while it unwinds
  std::optional<Deadline> stop_at_;  // set while it is awaited
  std::optional<Deadline> kill_at_;  // set while the group is being stopped
};

}  // namespace lockstep::launch
