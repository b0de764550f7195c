// NodeLink: this launcher's part in a job over several nodes: its connection to the others and its copy of their state.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/job/agent.h"
#include "launch/nodes/job_state.h"
#include "launch/output/console.h"
#include "lockstep/base/deadline.h"
#include "lockstep/store/tcp_store.h"
#include "store/tcp/session.h"

namespace lockstep::launch {

// The list of a job's events in the store (TcpStore::push). `generation`: how many jobs with this run id the store has
// seen before.
std::string events_of_job(const std::string& run_id, const std::string& generation = "0");
// Says that the store serves this job alone.
Status announce_job(comm::Store& store, const std::string& run_id);

// For one thread.
class NodeLink {
 public:
  // Serves the store if it has to, connects, and joins. Tries for as long as info.join_timeout_ms. kAborted:
  // `interrupt_fd` became readable meanwhile.
  static Result<std::unique_ptr<NodeLink>> join(const MeetingOptions& options, NodeInfo info, int interrupt_fd);
  ~NodeLink() = default;
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  // Readable when serve() has something to do.
  int fd() const { return session_.fd(); }
  // When serve() has something to do in any case.
  Deadline next_due() const { return timer_due_; }
  // Takes what has arrived. An error means that this launcher has lost the others.
  Status serve();
  // What serve() and join() have found worth telling.
  std::vector<Note> take_notes() { return std::exchange(notes_, {}); }

  // Signals that whoever started the launchers passes on to the workers of all nodes, since the last call.
  std::vector<int> take_signals() { return std::exchange(signals_, {}); }

  const JobState& state() const { return state_; }
  const NodeInfo& self() const { return self_; }
  const std::string& run_id() const { return run_id_; }
  const std::string& job_key() const { return job_key_; }
  int group_rank() const { return state_.group_rank(self_.id); }

  // Ends the connection. A launcher that serves the store first waits until the others have read the end of the job
  // and left, or are lost: until the deadline, or until `interrupt_fd` is readable.
  void leave(int interrupt_fd, Deadline deadline);

  // Tells the others. `event.node` is filled in.
  Status tell(Event event);

 private:
  // The part of join() after the connection. kUnavailable: whoever serves has ended.
  static Result<std::unique_ptr<NodeLink>> join_over(comm::StoreSession session,
                                                     std::unique_ptr<comm::TcpStoreServer> server,
                                                     comm::TcpStoreOptions client, const MeetingOptions& options,
                                                     NodeInfo info);
  NodeLink(std::unique_ptr<comm::TcpStoreServer> server, std::shared_ptr<comm::TcpStore> store,
           comm::StoreSession session, NodeInfo self, std::string run_id, std::string generation, std::string job_key,
           std::string where);
  Status begin();
  // Until all see this node's join. kUnavailable: the launcher that serves has ended, or ends with its job.
  Status await_join(Deadline deadline, int interrupt_fd);
  // The job of this generation was over, or had died, when this launcher came: joins the next one.
  Status join_next_generation();
  bool joins_next_generation() const;
  void take_event(const Event& event);
  void set_timer();

  std::unique_ptr<comm::TcpStoreServer> server_;  // nullptr: another launcher, or another program, serves
  std::shared_ptr<comm::TcpStore> store_;
  comm::StoreSession session_;
  NodeInfo self_;
  std::string run_id_;
  std::string generation_;
  std::string job_key_;
  std::string list_;  // of the events
  std::string where_;
  int next_event_ = 1;
  bool has_joined_ = false;  // as all see it
  JobState state_;
  std::vector<Note> notes_;
  std::vector<int> signals_;
  int timer_epoch_ = -1;
  Deadline timer_due_ = Deadline::never();
};

// Tells the user what the nodes of a job do. Important notes go to stderr, the others to the log; all of them if
// `reports` is false.
void say_notes(NodeLink& link, Console& err, bool reports);

}  // namespace lockstep::launch
