// Joining a group that may form several times on one store, and leaving it.
//
// Keys: "<base>/joins/R" counts how often rank R has joined. The n-th time that all ranks join is round n, whose keys
// are under "<base>/n/": those of exchange_members(), and left/R: rank R has left. A process that joins as R while
// another one has joined and not left claims a rank that is taken.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/member.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

struct Joined {
  std::string prefix;           // of the round's keys
  std::vector<Member> members;  // by rank
};

// Joins as this process. Blocks until all have joined (exchange_members()). After an error this rank has left already.
Result<Joined> join_group(Store& store, const std::string& base, int rank, int group_size, Deadline deadline);

// In place of that, for a rank that cannot take part: the other ranks of its round get `why`. Does not block. Returns
// the prefix of the round's keys; this rank has left it already.
Result<std::string> refuse_group(Store& store, const std::string& base, int rank, const Status& why);

// The prefix of the keys of the round that `rank` has joined last.
Result<std::string> round_of(Store& store, const std::string& base, int rank);

Status leave_group(Store& store, const std::string& prefix, int rank, Deadline deadline);
// Whether all ranks of a round have left.
Result<bool> have_all_left(Store& store, const std::string& prefix, int group_size);

// Whether a process has ever joined as `rank` under `base`.
Result<bool> has_joined(Store& store, const std::string& base, int rank);

}  // namespace lockstep::comm
