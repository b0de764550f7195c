// A restricted reader of Python's pickles: what torch.save writes with protocols 2 to 5. It calls nothing: a "call" of
// a name of pickle_names.h is noted, and what any other name makes is a foreign value, of which only the name is kept.
#pragma once

#include "checkpoint/file/file_bytes.h"
#include "pickle_graph.h"
#include "pickle_input.h"

namespace lockstep::checkpoint {

// Memory that the values may take for each byte of the pickle, beside the allowance.
inline constexpr std::uint64_t kPicklePerByte = 48;

struct PickleRules {
  FindPickleName find_name = find_pickle_name;
  bool refuses_foreign = false;  // other names are an error
};

// Reads one pickle, up to its end mark. Throws CheckpointError without the path, whose text names the byte: kCorrupt
// for broken bytes and values that take more memory than is allowed; kUnsupported for opcodes that are not known.
// Takes what the values need from `allowance`.
PickleGraph read_pickle(PickleInput& input, ReadAllowance& allowance, const PickleRules& rules = {});

}  // namespace lockstep::checkpoint
