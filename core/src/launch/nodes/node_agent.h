// The agent of one node of several: joins the others, runs its worker group in every attempt, and ends with the job.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "launch/job/agent.h"
#include "launch/job/failure_report.h"
#include "launch/job/job_services.h"
#include "launch/job/worker_group.h"
#include "launch/nodes/node_link.h"
#include "launch/output/console.h"
#include "launch/output/log_files.h"
#include "launch/process/signal_watch.h"

namespace lockstep::launch {

// What this launcher tells the others of itself.
Result<NodeInfo> describe_node(const JobOptions& options);

class NodeAgent {
 public:
  // `job`: what stays the same in all attempts. `logs`: nullptr if no stream goes to a file.
  NodeAgent(const JobOptions& options, JobSpec job, NodeLink& link, Consoles& consoles, LogFiles* logs,
            SignalWatch& signals, Standby& standby, RankWatch& watch)
      : options_(options),
        job_(std::move(job)),
        link_(link),
        consoles_(consoles),
        logs_(logs),
        signals_(signals),
        standby_(standby),
        watch_(watch) {}

  // Blocks until the job has ended, or this node's part in it.
  Result<JobEnd> run();

 private:
  // What the state of the job asks of this node now. An end: nothing more.
  Result<std::optional<JobEnd>> act();
  JobEnd over() const;
  Status open_services();
  Result<std::optional<JobEnd>> run_attempt();
  // Waits for events once. A signal: this node leaves.
  Result<std::optional<JobEnd>> wait();

  const JobOptions& options_;
  JobSpec job_;
  NodeLink& link_;
  Consoles& consoles_;
  LogFiles* const logs_;
  SignalWatch& signals_;
  Standby& standby_;
  RankWatch& watch_;
  std::optional<JobServices> services_;  // of the attempt under way, on its first node
  // The last attempt whose services this node has opened, whose workers it has run, and whose stop it has told.
  int served_ = -1;
  int ran_ = -1;
  int stopped_ = -1;
  // Says for which nodes the job waits, and since when.
  void report_waiting();
  // While other nodes still run: whether they wait for a rank of this one, which has ended with 0.
  void look_for_early_ends();
  JobSpec ended_job_;
  std::vector<int> ended_;  // ranks of this node, until they are known to have joined the others
  Deadline look_at_ = Deadline::never();
  std::optional<Deadline::Clock::time_point> waits_since_;
  Deadline report_due_ = Deadline::never();
  std::optional<Deadline> place_due_;  // until then this node waits for a place in an attempt
};

}  // namespace lockstep::launch
