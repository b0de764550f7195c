// The roll call on a store that all ranks have reached: five short requests per rank, whatever the number of ranks.
//
// Keys, under "<base>/<round>/": rank/R who R is; world the first to say a world size; count how many are there;
// verdict the outcome for all, written once; left/R R has signed off. "<base>/joins/R" counts R's rounds, so that a
// group can form again on the same store, and a second process that claims R while the first is there is told apart.
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

// Blocks until all have checked in; answers the round's prefix. On error the member has signed off already.
Result<std::string> join_group(Store& store, const std::string& base, const Participant& me, Deadline deadline);

Status leave_group(Store& store, const std::string& prefix, int rank, Deadline deadline);
// Whether all ranks of a round have.
Result<bool> have_all_left(Store& store, const std::string& prefix, int world_size);

// Once all have checked in and called this, nothing of theirs is left in the store, and nobody can be told apart from
// them any more: for a base that is used once. `prefix` is what check_in answered. Best effort.
void forget_group(Store& store, const std::string& base, const std::string& prefix, int world_size);

// Whether some process has claimed `rank` under `base`.
Result<bool> has_joined(Store& store, const std::string& base, int rank);

}  // namespace lockstep::comm
