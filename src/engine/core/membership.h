// Membership: the ranks of a group find one another through the store, once, when the group is made.
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
Result<std::vector<Member>> exchange_members(Store& store, const GroupNames& names, const Member& me,
                                             Deadline deadline);

// Instead: this rank cannot come, and those that wait for it get `why`. Best effort.
void refuse_membership(Store& store, const std::string& group, const Status& why);

// What that leaves in the store.
std::vector<std::string> membership_keys(const std::string& group);

}  // namespace lockstep::comm
