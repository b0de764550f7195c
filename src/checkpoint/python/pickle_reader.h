// A restricted reader of Python's pickles: what torch.save writes with protocols 2 to 5. It calls nothing: a name that
// is not in pickle_names.h ends it, and a "call" is only noted. Memory is bounded by the size of the pickle.
#pragma once

#include "pickle_graph.h"
#include "pickle_input.h"

namespace lockstep::checkpoint {

// Reads one pickle, up to its end mark. Throws CheckpointError without the path: kCorrupt for broken bytes;
// kUnsupported for names and opcodes outside the list. Both name the byte.
PickleGraph read_pickle(PickleInput& input, FindPickleName find_name = find_pickle_name);

}  // namespace lockstep::checkpoint
