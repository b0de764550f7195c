#include "c10d/world/engine_of.h"

namespace lockstep {

ProcessGroupLockstep* engine_of(const ProcessGroup& group, c10::DeviceType device) {
  return dynamic_cast<ProcessGroupLockstep*>(group->getBackend(device).get());
}

}  // namespace lockstep
