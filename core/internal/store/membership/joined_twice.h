// The error for two processes that claim one rank, in the same words wherever it is found out.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::comm {

struct Claimant {
  int pid = 0;  // 0: unknown
  std::string host;
};

// kMismatch: "`rank` joined twice, as pid 12 on host a and as pid 13 on host b", and what to do.
Status joined_twice(std::string_view rank, const Claimant& first, const Claimant& second);

}  // namespace lockstep::comm
