// What only this project's own backend can do (refuse a call, leave within a time, abort with a reason) is asked here.
#pragma once

#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/c10d/process_groups.h"

namespace lockstep {

// The backend that serves the group's tensors on `device`, if it is the engine's own. Null: it is another one. Throws
// c10::Error if the group has none for the device.
inline ProcessGroupLockstep* engine_of(const ProcessGroup& group, c10::DeviceType device) {
  return dynamic_cast<ProcessGroupLockstep*>(group->getBackend(device).get());
}

}  // namespace lockstep
