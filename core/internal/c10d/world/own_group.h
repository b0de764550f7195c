// Groups of this library's own. A wrapper's collectives run inside backward passes: when, depends on what a rank's pass
// computes. In a group of the program they would meet the program's own collectives, or those of another wrapper, in
// another order on another rank. So each wrapper, and whatever else communicates unseen, talks in a group of its own.
#pragma once

#include <string>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

// A group of the ranks of `group` (null: the world), with the backend that serves tensors of `device`. It breaks when
// `group` breaks, and the other way round; destroy_process_group(group) leaves it too. `user` is for errors. Collective
// over the group: all ranks make theirs in the same order.
//
// Returns `group` itself where no other is needed (one rank; it is one of these already), or where the backend is
// another library's (NCCL): there, communicators that wait for one another hold up the device.
ProcessGroup own_group(const ProcessGroup& group, c10::DeviceType device, const std::string& user);

// The caller leaves `own`, in which operations of its are under way that other ranks may not have called yet. It lives
// on until the group beside it is left. Does nothing if it is no group of this library's own.
void keep_own_group(const ProcessGroup& own);

// The group that `group` stands beside, if it is one of this library's own; else `group`.
ProcessGroup group_beside(const ProcessGroup& group);

// As own_group, but the first call of this `user` makes it, and later ones with this group get that one. For what waits
// in each call, so that its calls are in one order on all ranks.
ProcessGroup shared_own_group(const ProcessGroup& group, c10::DeviceType device, const std::string& user);

}  // namespace lockstep
