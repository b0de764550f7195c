// Stragglers: ranks whose own work takes longest, so that the others wait for them in communication.
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
  double median_seconds = 0.0;  // of the own work of all ranks
};

// The ranks with over 10 % more work of their own than the median of all, the slowest first. Empty when no rank has a
// part "communication": then the time of waiting is in the other parts, and all ranks look alike.
std::vector<Straggler> stragglers(std::span<const RankTimes> ranks);

// "rank 3 on node2: 31 % more work than the median"; at most five, then their number. Empty without stragglers.
std::string stragglers_text(std::span<const Straggler> found);

}  // namespace lockstep::report
