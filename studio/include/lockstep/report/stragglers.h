// Stragglers: ranks whose own work takes longest, so that the other ranks wait for them in communication.
//
// A pure function of the times of an epoch, which every thread may call.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/report/run_log.h"

namespace lockstep::report {

struct Straggler {
  int rank = 0;
  std::string host = {};
  double own_seconds = 0.0;     // all parts but "communication"
  double median_seconds = 0.0;  // median of the own work of all ranks
};

// Returns the ranks whose own work takes over 10 % more time than the median of all ranks, the slowest first. Empty
// when no rank has a part "communication": then the time of waiting is in the other parts, and all ranks look alike.
std::vector<Straggler> stragglers(std::span<const RankTimes> ranks);

// "rank 3 on node2: 31 % more work than the median"; at most five ranks, then the number of stragglers. Empty without
// stragglers.
std::string stragglers_text(std::span<const Straggler> found);

}  // namespace lockstep::report
