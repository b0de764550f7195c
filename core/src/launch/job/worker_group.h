// WorkerGroup: the workers of one attempt, from the start to the end of the last process.
#pragma once

#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/job/agent.h"
#include "launch/job/failure_report.h"
#include "launch/job/rank_watch.h"
#include "launch/job/recorders.h"
#include "launch/job/relay.h"
#include "launch/job/roster.h"
#include "launch/job/worker_environment.h"
#include "launch/job/workers.h"
#include "launch/output/console.h"
#include "launch/process/process_tree.h"
#include "launch/process/signal_watch.h"
#include "launch/standby/standby.h"
#include "lockstep/base/fd.h"
#include "lockstep/store/store.h"

namespace lockstep::launch {

class NodeLink;
struct Event;

// How an attempt ended. Without a failure and a signal every worker exited with 0.
struct RunResult {
  std::optional<Failure> failure;  // the first
  int signal = 0;                  // the signal that asked the launcher to end; 0: none
  bool killed = false;             // workers did not end in the time that --grace gave them
  Status leftovers;                // an error if workers were not started or processes could not be killed
  Status nodes;                    // an error if the launcher has lost those of the other nodes
  bool stopped = false;            // because of another node
  Status program;                  // an error if the program is not there (kNotFound) or cannot be executed
};

// The launcher's exit code after a signal. Workers that had to be killed may not have saved what they wanted to save,
// and a script that starts the job again after 128 + SIGTERM must not do so for ever.
inline int code_after_signal(const RunResult& result) {
  return 128 + (result.killed ? SIGKILL : result.signal);
}

class WorkerGroup {
 public:
  // `logs`: nullptr if no stream goes to a file. `nodes`: nullptr if the job has one node.
  WorkerGroup(const JobOptions& options, const JobSpec& job, Consoles& consoles, LogFiles* logs, SignalWatch& signals,
              Standby& standby, RankWatch& watch, NodeLink* nodes = nullptr)
      : options_(options),
        job_(job),
        consoles_(consoles),
        signals_(signals),
        standby_(standby),
        watch_(watch),
        nodes_(nodes),
        reserves_(options),
        relay_(consoles, logs, signals.fd()),
        recorders_(options, job, logs, signals) {}

  // Blocks until no process of the group is left that can be killed, and its output is relayed. An error means that the
  // group could not be run.
  Result<RunResult> run();

 private:
  Result<std::vector<Command>> make_commands();
  Result<Command> make_command(int local_rank, const Variables& more = {});
  // Makes the workers of processes on standby if there are any, else starts new processes.
  Result<ProcessTree> start(const std::vector<Command>& commands);
  // Whether the workers run, and are to go on.
  bool all_is_well() const { return !result_.failure && !kill_at_; }
  RunResult ended_by_signal(const Status& why);
  // Waits for events once and handles them. False: end the group now.
  Result<bool> step(Workers& workers);
  Status take_exits(Workers& workers);
  void take_exit(Workers& workers, const Exit& exit);
  // The same where the job may go on without a worker (deaths.cpp).
  void survive(Workers& workers, const Exit& exit);
  bool see_who_has_joined();
  void note_death(const Exit& exit, bool is_newcomer);
  // Starts a newcomer.
  Roster::Then replace(Workers& workers, int local_rank);
  Result<ProcessTree> start_newcomer(int local_rank);
  std::string what_follows(Roster::Then then) const;
  void tell_that_nobody_comes(int local_rank);
  void forget_claim(int rank) const;
  void end_for_lack_of_workers(Workers& workers);
  // Those that wait for a place in a world of which nobody is left.
  void end_newcomers(Workers& workers);
  void prepare_reserves(const std::vector<Command>& commands);
  void end_reserves();
  void note_tail(Failure& failure);
  // Hears what the other nodes have to say. They may ask to stop.
  void serve_nodes(Workers& workers);
  void tell(const Event& event);
  // The worker that has claimed the first failure: its local rank, or kElsewhere.
  std::optional<int> claimed() const;
  // The same if it has not exited yet.
  std::optional<int> claimed_by_running() const;
  // Whether the failure of this node is not told yet, because a worker of another node has claimed the first one.
  bool awaits_other_node() const { return awaited_ == kElsewhere && !kill_at_; }
  // False: this is the second signal, or it asks for the end at once.
  bool take_signal(Workers& workers);
  void begin_stop(Workers& workers, int signal_number);
  // SIGUSR1 and SIGUSR2 go to the workers. With --dump-dir SIGUSR1 asks for dumps, and goes on to the workers that take
  // it: it would end the others.
  void pass_on_signal(Workers& workers, int number);
  void stop_after_failure(Workers& workers);
  Failure make_failure(const Exit& exit) const;
  void note_failure(const Exit& exit);
  // Workers that have ended with 0 and for which others wait in vain.
  void look_for_early_ends();
  // Says which workers have not ended in the grace time.
  void say_killed();

  const JobOptions& options_;
  const JobSpec& job_;
  Consoles& consoles_;
  SignalWatch& signals_;
  Standby& standby_;
  RankWatch& watch_;
  NodeLink* const nodes_;
  Reserves reserves_;
  Relay relay_;
  Recorders recorders_;
  RunResult result_;
  std::vector<std::string> error_files_;  // paths by local rank
  std::vector<bool> exited_;              // by local rank
  static constexpr int kElsewhere = -1;
  MemoryKills memory_kills_;  // before the workers started
  std::vector<int> ended_;    // ranks that have ended with 0, until they are known to have joined the others
  std::vector<int> died_;     // the same for workers without which the job goes on
  Deadline look_at_ = Deadline::never();
  std::optional<int> awaited_;       // the local rank that claimed the first failure, until it exits
  std::optional<Deadline> stop_at_;  // set while `awaited_` is
  std::optional<Deadline> kill_at_;  // set while the group is being stopped
  std::string executable_;
  Fd null_fd_;
  std::optional<Roster> roster_;            // nullopt: every failure ends the group
  std::vector<Failure> deaths_;             // in the order of time; with a roster. Without those whose places are taken
  std::size_t number_of_deaths_ = 0;        // those forgotten among them
  std::optional<Failure> last_death_;       // the one that was noted last
  bool tail_is_noted_ = false;              // the failure's
  std::shared_ptr<comm::Store> newcomers_;  // their part of the store, once it was needed
  Deadline end_newcomers_at_ = Deadline::never();
};

}  // namespace lockstep::launch
