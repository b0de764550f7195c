// Tells other layers that a group was left, so that what outlives the group drops its handle. Defined in
// world_state.cpp.
#pragma once

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

// `left` is called for each group that destroy_process_group leaves, after it was left, in the thread that destroys it;
// when the world is left, for each group of it. It must not throw, and must not make or destroy groups. Each function
// once, for the life of the process.
void watch_groups(void (*left)(const ProcessGroup& group));

}  // namespace lockstep
