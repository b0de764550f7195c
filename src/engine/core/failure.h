// Failures travel: a rank that has seen one leaves its other groups too, or dies of it, and who misses it there is to
// hear of the first cause. So a rank tells every group that it is in what it has seen ("last words", in control memory
// and in a letter to other machines), and whoever blames it begins with that.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// Why a group of this process broke.
struct Failure {
  Status status;
  std::vector<const Fd*> dead;  // processes (pidfds) whose death broke it
};

// What follows from an earlier failure. `cause` may be empty, and may be what `what` begins with.
std::string caused(const std::string& cause, const std::string& what);
// The other way round: what it began with.
std::string first_cause(std::string_view message);

}  // namespace lockstep::comm
