// Membership: the ranks of a group find one another through the store, once, when the group is made.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"
#include "roster.h"

namespace lockstep::comm {

// What a rank tells the others of itself.
struct Member {
  int rank = 0;
  int world = 1;
  int pid = 0;
  std::string machine;                      // equal for ranks that can share memory
  std::string host;                         // for errors
  std::vector<std::string> addresses = {};  // where connections of this machine may come from
};

// A text that is equal for processes that can share memory: LOCKSTEP_MACHINE, or else the boot id, the network
// namespace (abstract Unix sockets belong to one) and the user (memory is not handed to other users).
Result<std::string> machine_of_this_process();

// Describes this process. `machine_override`, if not empty, is used instead of machine_of_this_process().
Result<Member> describe_this_process(int rank, int world, const std::string& machine_override);

// Collective: every rank publishes its membership and gets those of all ranks, sorted by rank. kTimeout names the
// ranks that are missing; kMismatch names a rank that joined twice or expects another world size.
Result<std::vector<Member>> exchange_members(Store& store, const GroupNames& names, const Member& me,
                                             Deadline deadline);

// Instead of exchange_members(): this rank cannot join, and the ranks that wait for it get `why`. Best effort.
void refuse_membership(Store& store, const std::string& group, const Status& why);

// The keys that these functions leave in the store.
std::vector<std::string> membership_keys(const std::string& group);

}  // namespace lockstep::comm
