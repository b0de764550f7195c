#include "store/membership/joined_twice.h"

#include <fmt/format.h>

namespace lockstep::comm {
namespace {

std::string describe(const Claimant& claimant) {
  return claimant.pid == 0 ? "another process" : fmt::format("pid {} on host {}", claimant.pid, claimant.host);
}

}  // namespace

Status joined_twice(std::string_view rank, const Claimant& first, const Claimant& second) {
  return {ErrorCode::kMismatch,
          fmt::format("{} joined twice, as {} and as {}. Give every process its own RANK; if these are two jobs, give "
                      "each its own address",
                      rank, describe(first), describe(second))};
}

}  // namespace lockstep::comm
