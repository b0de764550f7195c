// Peers: what this rank knows of the state of each rank of its group. Ranks of its machine show it in shared memory. Of
// the others it knows what their connections and their control messages tell. Not thread-safe: the group's lock is held
// around every call.
#pragma once

#include <string>
#include <vector>

#include "group_context.h"
#include "local_groups.h"

namespace lockstep::comm {

class Peers {
 public:
  Peers(const GroupContext& context, const LocalGroups& locals)
      : context_(context), local_(locals.before()), told_(context.size()) {}

  // What a rank of another machine has told of itself; its condition is in the news of any rank of its machine.
  struct Told {
    bool greeted = false;
    bool left = false;
    bool answered = false;  // since this rank last asked
    std::string cause;      // its known cause
    std::string condition;
  };
  Told& told(int rank) { return told_[rank]; }
  void forget_answers();

  bool has_left(int rank) const;
  // It has left, or its process has ended, or the connection to it has broken.
  bool is_gone(int rank) const;
  // For error texts: how a rank that is gone went.
  const char* how_gone(int rank) const;
  std::string known_cause(int rank) const;
  // Neighbours whose hello has not come.
  std::vector<int> silent_neighbours() const;

  // Why a rank stands still, as its machine knows; empty: it runs.
  std::string condition(int rank) const;
  // The same, and "did not answer" of a neighbour that was asked in vain.
  std::string why_still(int rank) const;
  // "1 (on node7, stopped by a signal)" for each rank that stands still, without those already `named`.
  std::vector<std::string> who_stands_still(const std::vector<int>& named) const;

 private:
  const Peer& local_peer(int rank) const { return local_.memory().peer(context_.topology.index_of(rank)); }

  const GroupContext& context_;
  const LocalGroup& local_;
  std::vector<Told> told_;
};

}  // namespace lockstep::comm
