// What the launchers of a job tell one another. Every launcher sees the same events in the same order.
#pragma once

#include <string>
#include <string_view>

#include "launch/job/failure_report.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// What a launcher says of itself when it joins.
struct NodeInfo {
  std::string id;      // random: a launcher that is started again is another node
  int node_rank = -1;  // --node-rank; -1: not given
  int workers = 1;
  std::string host = {};
  int pid = 0;
  std::string address = {};         // where the others reach this machine
  bool serves = false;              // it serves the store in which all meet
  bool store_outlives_job = false;  // and which then serves others
  std::string role = "default";

  // All nodes must agree on these.
  std::string version = {};  // of Lockstep
  std::string command = {};
  bool same_command = true;  // the nodes' commands must be equal
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  long grace_ms = 5000;
  long silence_ms = 2000;

  // Milliseconds; those of the first node count.
  long join_timeout_ms = 600'000;
  long last_call_ms = 30'000;

  // Why this node cannot run the program, and the exit code that says so; empty and 0: it can.
  std::string problem = {};
  int problem_code = 0;

  // "node 1 (host b, pid 4711)", for messages.
  std::string text() const;
};

enum class EventKind {
  kJoin,      // info
  kTimer,     // number: the epoch of JobState::timer() that is over
  kServices,  // the addresses of attempt `number`
  kDone,      // all workers of this node have finished attempt `number`
  kFailed,    // the first failure of this node in attempt `number`
  kUnable,    // this node cannot run attempt `number` at all: text, code
  kStopped,   // no worker of this node is left of attempt `number`
  kLeave,     // this launcher was asked to end by the signal `number`
  kLost,      // the store has lost this launcher
  kEnd,       // whoever started the launchers ends the job: text, code
  kSignal,    // and has got the signal `number`, which is for the workers
};

struct Event {
  EventKind kind = EventKind::kLost;
  std::string node = {};  // NodeInfo::id of the sender
  int number = 0;
  NodeInfo info = {};
  std::string master_addr = {};
  int master_port = 0;
  std::string store = {};
  std::string text = {};
  int code = 0;
  Failure failure = {};
};

std::string encode(const Event& event);
// kCorrupt: not an event.
Result<Event> decode_event(std::string_view text);

}  // namespace lockstep::launch
