// A store for ranks that make a group out of another one: a wait for a key ends once one of them is gone.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/store/store.h"

namespace lockstep {

class GroupCore;

// A view of `store`. Its waits fail with kPeerFailed soon after one of `ranks` of the group `core` has died or left.
// After this rank has left that group, nothing is watched.
std::shared_ptr<comm::Store> make_watched_store(std::shared_ptr<comm::Store> store,
                                                const std::shared_ptr<GroupCore>& core, std::vector<int> ranks);

}  // namespace lockstep
