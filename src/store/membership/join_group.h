// Forming a group on a store that all ranks have reached. Each rank sends five short requests, however many ranks there
// are.
//
// Keys, under "<base>/<round>/": rank/R describes rank R; world is the first member's record, with its world size;
// count is the number of ranks that have joined; verdict is the outcome for all, written once; left/R: R has left. The
// key
// "<base>/joins/R" counts R's rounds. It lets a group form again on the same store, and shows that a second process
// claims R while the first is there.
#pragma once

#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

struct Participant {
  int rank = 0;
  int world_size = 1;
  std::string host;
  int pid = 0;
};

// This process as a member.
Participant make_participant(int rank, int world_size);

// Blocks until all have joined; returns the prefix of the round's keys. After an error this member has already left.
Result<std::string> join_group(Store& store, const std::string& base, const Participant& me, Deadline deadline);

Status leave_group(Store& store, const std::string& prefix, int rank, Deadline deadline);
// Whether all ranks of a round have left.
Result<bool> have_all_left(Store& store, const std::string& prefix, int world_size);

// Deletes the group's keys once all ranks have called it. A later process that claims one of the ranks is not noticed
// after that, so it is for a base that is used once. `prefix` comes from join_group. Best effort.
void forget_group(Store& store, const std::string& base, const std::string& prefix, int world_size);

// Whether a process has ever joined as `rank` under `base`.
Result<bool> has_joined(Store& store, const std::string& base, int rank);

}  // namespace lockstep::comm
