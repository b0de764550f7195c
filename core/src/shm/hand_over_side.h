// What both sides of a hand-over have in common: rank 0 (hand_over_host.cpp) and the others (hand_over_guest.cpp).
#pragma once

#include <string>
#include <vector>

#include "hand_over_protocol.h"
#include "shm/hand_over.h"

namespace lockstep::comm {

class HandOverSide {
 public:
  HandOverSide(Store& store, const SharedArena& arena, const HandOverOptions& options, Deadline deadline);

 protected:
  std::string name(int rank) const { return options_.roster.name(rank); }
  Status own_error(const Status& status) const { return status.with_context(name(options_.rank)); }
  // Maps what introductions_ and descriptors_ hold, and the control memory.
  Result<HandOver> build(const Fd& control);

  Store& store_;
  const SharedArena& arena_;
  const HandOverOptions& options_;
  const Deadline deadline_;
  Introduction self_;
  std::vector<Introduction> introductions_;   // by rank
  std::vector<std::vector<Fd>> descriptors_;  // arena, pidfd; by rank
};

// The key in the store that says why a rank cannot take part, if rank 0 may not know.
std::string refused_key(const std::string& group);

// Rank 0's address, under hand_over_key().
Status publish(Store& store, const std::string& group, const Address& address);

Result<HandOver> hand_over_as_host(Store& store, const SharedArena& arena, const HandOverOptions& options,
                                   Deadline deadline);
Result<HandOver> hand_over_as_guest(Store& store, const SharedArena& arena, const HandOverOptions& options,
                                    Deadline deadline);

}  // namespace lockstep::comm
