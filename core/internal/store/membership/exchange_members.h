// Who is here: every rank of a group writes its record to the store, once, and gets the records of all ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/member.h"
#include "lockstep/store/store.h"
#include "roster.h"

namespace lockstep::comm {

// Describes this process. `machine`, if not empty, stands in place of what the process finds out (Member::machine).
Result<Member> describe_this_process(int rank, int group_size, const std::string& machine = {});

// Collective: blocks until all ranks have written their records; returns these by rank. All ranks get the same outcome.
// kMismatch: a rank joined twice, expects another group size or is outside the group. kTimeout: who has joined and who
// is missing. If `me` is an error this rank cannot join, and the ranks that wait for it get the error too. Each rank
// sends three requests, however many ranks there are.
//
// Keys: "<prefix>/members_so_far" is the records in the order in which they came; "<prefix>/members" is the outcome,
// written once: all records, or why there will be no group.
Result<std::vector<Member>> exchange_members(Store& store, const std::string& prefix, const Roster& roster,
                                             const Result<Member>& me, Deadline deadline);

// For the error of two processes that claim one rank, in the same words wherever it is found out.
struct Claimant {
  int pid = 0;  // 0: unknown
  std::string host;
};

// kMismatch: "`rank` joined twice, as pid 12 on host a and as pid 13 on host b", and what to do.
Status joined_twice(std::string_view rank, const Claimant& first, const Claimant& second);

// The keys that exchange_members() leaves in the store.
std::vector<std::string> membership_keys(const std::string& prefix);

}  // namespace lockstep::comm
