#pragma once

#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::checkpoint {

// The same dict without the prefixes "module." and "_orig_mod." that DistributedDataParallel and torch.compile put in
// front of all names. A prefix of only some names is a submodule of the model, and stays.
StateDict without_wrappers(StateDict state);

}  // namespace lockstep::checkpoint
