// For a rank that cannot take part in its world, because its own call is wrong.
#pragma once

#include <memory>
#include <string>

#include "lockstep/store/rendezvous.h"

namespace lockstep::comm {

// In place of rendezvous(): the ranks that wait for this one get kMismatch, "rank 2 could not take part: reason". So do
// those that come later, if the store outlives this call. Where it does not (this rank serves the store, or the store
// is a file), waits up to 5 s for all ranks to come. `store`: as for rendezvous(); null: that of the options. Best
// effort: nothing is told where no store is reached within 5 s.
void refuse_rendezvous(const RendezvousOptions& options, const std::shared_ptr<Store>& store,
                       const std::string& reason);

}  // namespace lockstep::comm
