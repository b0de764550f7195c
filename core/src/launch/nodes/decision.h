// What a job over several nodes does when something happens to one of them: a pure function.
#pragma once

#include <string>

namespace lockstep::launch {

// What happened last.
enum class Cause {
  kStart,         // nodes gather for the first attempt
  kWorkerFailed,  // a worker exited with an error
  kNodeLost,      // a launcher died, or its machine does not answer
  kNodeLeft,      // a launcher was asked to end
  kNodeJoined,    // one more launcher has come
};

struct Situation {
  Cause cause = Cause::kStart;
  bool running = false;  // workers run; else all have ended, or none was started yet
  int nodes = 0;         // how many could take part in the next attempt
  int seated = 0;        // how many take part in this one; 0 unless running
  int min_nodes = 1;
  int max_nodes = 1;
  int restarts = 0;  // that failures have used
  int max_restarts = 0;
  bool last_call_over = false;  // the time in which more nodes may come when there are enough
  bool join_timed_out = false;  // there were too few for too long
};

enum class Action {
  kWait,     // as it is: the workers run on, or more nodes have to come
  kStart,    // an attempt with all nodes that are there
  kRestart,  // end all workers, then decide again
  kGiveUp,   // the job has failed
};

struct Decision {
  Action action = Action::kWait;
  bool uses_restart = false;  // it counts against max_restarts
  std::string reason;
};

// While workers run:
//   - a failed worker or a lost node restarts the job while restarts are left, and uses one;
//   - a node that leaves or joins restarts it too, and uses none. The job ends when too few nodes are left.
// While none runs: it starts when all nodes are there; when there are enough and the last call is over; and after a
// restart as soon as there are enough, because those are known to work. Nodes that come later join by another restart.
//
// Recovery in place (survivors keep their state, only what is lost starts again) would be one more action, chosen here
// before kRestart and carried out by WorkerGroup instead of ending its workers.
Decision decide(const Situation& situation);

}  // namespace lockstep::launch
