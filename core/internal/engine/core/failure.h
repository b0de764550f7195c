// One failure causes others: a rank that has seen one often leaves its other groups, or ends. The ranks of those groups
// then miss this rank, and their error must name the first cause. Therefore a rank tells all its groups which failure
// it has seen (its "known cause": in control memory, and in an active message to other machines). An error that blames
// this rank begins with its known cause.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// Why a group of this process broke.
struct Failure {
  Status status;
  std::vector<const Fd*> dead;  // pidfds of the processes whose death broke it
  std::uint64_t family = 0;     // of the group; groups of the same family break too. 0: of none
};

// Follows the text about a rank that has left without an earlier cause.
inline constexpr std::string_view kLeftEarly =
    "; every rank must make the same calls: if it had fewer batches, DistributedDataParallel's join helps";

// The known cause of a rank that leaves because its program wants to form the group anew begins so.
inline constexpr std::string_view kFormedAnew = "the group is formed anew by reconfigure";
inline bool is_formed_anew(std::string_view cause) {
  return cause.starts_with(kFormedAnew);
}

// The error of operations that miss a rank with this known cause: kAborted where the group is formed anew, which is no
// failure of a rank, else kPeerFailed; the text is that of caused().
Status loss(const std::string& cause, const std::string& what);
// The text of a failure (`what`) that follows from an earlier one. `cause` may be empty or shortened, and `what` may
// begin with it. Nothing follows a cause that says that the group is formed anew.
std::string caused(const std::string& cause, const std::string& what);
// The first cause that such a text begins with.
std::string first_cause(std::string_view message);
// Shortens such a text to at most `bytes`: "..." stands for the rest. No word is cut, so that the first cause can still
// be told from what follows, however often the text is passed on.
std::string shortened(std::string_view message, std::size_t bytes);

}  // namespace lockstep::comm
