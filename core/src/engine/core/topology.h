// Topology: which ranks of a group share a machine. Every rank computes the same topology from the members.
#pragma once

#include <string>
#include <vector>

#include "lockstep/store/member.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

class Topology {
 public:
  explicit Topology(const std::vector<Member>& members);

  int size() const { return static_cast<int>(machine_of_.size()); }
  int machines() const { return static_cast<int>(ranks_.size()); }
  // Machines are numbered in the order of their first ranks.
  int machine_of(int rank) const { return machine_of_[rank]; }
  int index_of(int rank) const { return index_of_[rank]; }  // among the ranks of its machine
  const std::vector<int>& ranks(int machine) const { return ranks_[machine]; }
  int size(int machine) const { return static_cast<int>(ranks_[machine].size()); }
  int rank_at(int machine, int index) const { return ranks_[machine][index]; }
  const Member& member(int rank) const { return members_[rank]; }

  // How many rails there are: as many as the smallest machine has ranks. Rail t is the ranks with index t.
  int rails() const { return rails_; }
  // Whether two ranks of different machines are connected from the start, so that news reach every machine: those with
  // the same index, counted modulo the number of ranks of the smaller of the two machines.
  bool are_neighbours(int a, int b) const;

 private:
  std::vector<Member> members_;
  std::vector<std::vector<int>> ranks_;
  std::vector<int> machine_of_;
  std::vector<int> index_of_;
  int rails_ = 1;
};

// "rank(s) 2, 3 (on node7), 5 (on node8)"
std::string ranks_with_hosts(const Topology& topology, const Roster& roster, const std::vector<int>& ranks);

// How the ranks reach one another, for people.
struct Reach {
  std::string text;    // "2 ranks share memory (host a)"
  std::string reason;  // why ranks of one machine do not share memory, although nobody asked for that; else empty
};
Reach describe_reach(const Topology& topology, const Roster& roster);

}  // namespace lockstep::comm
