// Which ranks of a group share a machine. Found out once, when the group is made; everything else follows by arithmetic
// that every rank does alike.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"
#include "roster.h"

namespace lockstep::comm {

// What a rank says of itself to the others.
struct Member {
  int rank = 0;
  int world = 1;
  int pid = 0;
  std::string machine;                      // equal for ranks that can share memory
  std::string host;                         // for people
  std::vector<std::string> addresses = {};  // where connections of this machine may come from
};

// Equal for processes that can share memory: LOCKSTEP_MACHINE, or else boot id, network namespace (abstract Unix
// sockets are its own) and user (others are refused memory).
Result<std::string> machine_of_this_process();

// This process; `machine_override`, unless it is empty, stands for machine_of_this_process().
Result<Member> describe_this_process(int rank, int world, const std::string& machine_override);

// Collective: every rank says who it is and learns of all the others; sorted by rank. kTimeout names who is missing,
// kMismatch who is there twice or has another world size.
Result<std::vector<Member>> call_roll(Store& store, const GroupNames& names, const Member& me, Deadline deadline);

// Instead: this rank cannot come, and those that wait for it get `why`. Best effort.
void refuse_roll(Store& store, const std::string& group, const Status& why);

// What that leaves in the store.
std::vector<std::string> roll_keys(const std::string& group);

class MachineLayout {
 public:
  explicit MachineLayout(const std::vector<Member>& members);

  int world() const { return static_cast<int>(machine_of_.size()); }
  int machines() const { return static_cast<int>(ranks_.size()); }
  // In the order of their first ranks.
  int machine_of(int rank) const { return machine_of_[rank]; }
  int index_of(int rank) const { return index_of_[rank]; }  // among the ranks of its machine
  const std::vector<int>& ranks(int machine) const { return ranks_[machine]; }
  int size(int machine) const { return static_cast<int>(ranks_[machine].size()); }
  int rank_at(int machine, int index) const { return ranks_[machine][index]; }
  const Member& member(int rank) const { return members_[rank]; }

  // How many ranks of each machine share the traffic of reductions: lane t is the ranks with index t.
  int lanes() const { return lanes_; }
  // Ranks that keep a connection from the start, so that news reach every machine: those of the same lane, and of
  // larger machines those that fall on it.
  bool are_neighbours(int a, int b) const;

 private:
  std::vector<Member> members_;
  std::vector<std::vector<int>> ranks_;
  std::vector<int> machine_of_;
  std::vector<int> index_of_;
  int lanes_ = 1;
};

// "rank(s) 2, 3 (on node7), 5 (on node8)"
std::string ranks_with_hosts(const MachineLayout& layout, const Roster& roster, const std::vector<int>& ranks);

}  // namespace lockstep::comm
