// JobState: what a job over several nodes is doing, computed from its events.
//
// Every launcher applies the same events in the same order, so all of them agree, and none of them leads. No clock is
// read here: a timer that is over is an event too.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/nodes/decision.h"
#include "launch/nodes/event.h"

namespace lockstep::launch {

enum class Phase {
  kGathering,  // waits for nodes
  kStarting,   // the nodes of the attempt are fixed; the first of them has to say where its store is
  kRunning,
  kStopping,  // waits until no worker is left
  kOver,
};

struct Member {
  NodeInfo info;
  bool done = false;     // all its workers have finished
  bool stopped = false;  // none of its workers is left, after a failure
  bool gone = false;     // lost after it was done
};

// How the job ended, the same on every node.
struct Outcome {
  int code = 0;
  std::string reason = {};              // empty: all workers finished, or a worker failed
  std::optional<Failure> failure = {};  // of the worker that failed first
};

// Something has to happen after a while, unless events come first.
struct Timer {
  int epoch = 0;
  std::chrono::milliseconds after{0};
};

// What the user may want to know.
struct Note {
  std::string text;
  bool important = true;                // false: all goes as planned
  std::optional<Failure> failure = {};  // to report before the text
};

// A node's part of the workers with its role, which are numbered by themselves.
struct RoleRanks {
  int first = 0;
  int of = 0;
};

class JobState {
 public:
  std::vector<Note> apply(const Event& event);

  Phase phase() const { return phase_; }
  int attempt() const { return attempt_; }    // from 0; -1 before the first
  int restarts() const { return restarts_; }  // used by failures
  // From kStarting on: those of the attempt, in the order of their group ranks.
  const std::vector<Member>& members() const { return members_; }
  // The group rank of a node in this attempt; -1: it is not part of it.
  int group_rank(const std::string& node) const;
  int world_size() const;
  int first_rank(int group_rank) const;
  RoleRanks role_ranks(int group_rank) const;
  // The addresses of this attempt, from kRunning on.
  const Event& services() const { return services_; }
  std::optional<Timer> timer() const;
  // Why this node cannot take part, if so.
  std::optional<std::string> refusal(const std::string& node) const;
  // Whether the job was over when this node came, or had died with all of its launchers. In a store that outlives its
  // jobs it can begin the next one.
  bool came_too_late(const std::string& node) const { return late_.contains(node); }
  const Outcome& outcome() const { return outcome_; }
  // Whether a launcher other than this node's has come and is not lost.
  bool has_others(const std::string& node) const { return present_.size() > present_.count(node); }
  // The failure that ended the attempt before this one, or ends this one; nullopt: none did.
  const std::optional<Failure>& failure() const { return failure_; }
  // Who is there, for messages: "node 0 (host a, pid 1), node 1 (...)".
  std::string list_members() const;
  // For which nodes a job waits that has not started, for messages: "1 of 2 nodes, missing is node 1". Empty: for none.
  std::string waits_for() const;

 private:
  void arrive(const NodeInfo& info);
  void join(const NodeInfo& info);
  // Why this node must not join; empty: it may.
  std::string objection(const NodeInfo& info) const;
  void refuse(const NodeInfo& info, const std::string& why);
  void services(const Event& event);
  void done(const Event& event);
  void failed(const Event& event);
  // The job goes on without this node if it can.
  void unable(const Event& event);
  void stopped(const Event& event);
  // Lost, or left by a signal.
  void gone(const Event& event, Cause cause);
  void timer_over(int epoch);

  Member* member(const std::string& node);
  // The node that is there with this one's --node-rank; nullptr: none is.
  const Member* twin_of(const NodeInfo& info) const;
  // Whether nobody who comes now can ever get a place: a job of a fixed size ends with the first node that it loses
  // after its last restart.
  bool is_closed() const;
  // What to do for a job of its own, for messages.
  std::string remedy() const;
  // How many of those that wait for a place could take one.
  int candidates() const;
  Situation situation(Cause cause) const;
  // While workers run: go on, restart or give up.
  void disturbed(Cause cause, const Outcome& if_over);
  // While none runs: start, wait or give up.
  void gather();
  void fill_from_standby();
  void start(const std::string& reason);
  void finish(Outcome outcome);
  void next_epoch();
  void note(std::string text, bool important = true) { notes_.push_back({std::move(text), important, {}}); }

  Phase phase_ = Phase::kGathering;
  Cause cause_ = Cause::kStart;  // of the gathering under way
  int attempt_ = -1;
  int restarts_ = 0;
  int epoch_ = 0;
  bool last_call_over_ = false;
  bool join_timed_out_ = false;
  std::optional<NodeInfo> rules_;  // of the first node that joined
  std::vector<Member> members_;
  std::vector<NodeInfo> standby_;  // came while workers ran
  std::map<std::string, std::string> refused_;
  std::set<std::string> present_;  // have come, and are not lost
  std::set<std::string> late_;
  Event services_;
  std::optional<Failure> failure_;
  std::string what_;  // what has happened to a node: a note says so when its attempt has stopped
  Outcome outcome_;
  bool called_off_ = false;  // whoever started the launchers has ended the job
  std::vector<Note> notes_;
};

}  // namespace lockstep::launch
