// Whether all ranks of a group have chosen the same, before they wait for one another in what they have chosen.
#pragma once

#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/store.h"
#include "roster.h"

namespace lockstep::comm {

struct Choice {
  std::string value;            // one line
  bool is_default = false;      // the rank has not asked for it
  std::string what = "values";  // for messages
  bool has_option = false;      // all ranks need the same, also where all values are defaults
  std::string option = {};      // its name, for messages
};

// Collective: blocks until all ranks have told what they have chosen, or two of them differ; every rank gets the same
// outcome. kMismatch: what each rank that has come by then has chosen. kTimeout: who is missing. Ranks that all have
// defaults may have different values. Keys: under "<prefix>/"; none is left once all ranks have called it.
Status check_same_choice(Store& store, const std::string& prefix, const Roster& roster, int rank, int group_size,
                         const Choice& mine, Deadline deadline);

// In place of that, for a rank that cannot choose: the others get `why`. Does not block.
void refuse_choice(Store& store, const std::string& prefix, int group_size, const Status& why);

}  // namespace lockstep::comm
