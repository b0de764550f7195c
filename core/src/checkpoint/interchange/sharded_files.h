// State dicts in several files, with an index that says which tensor is in which file.
#pragma once

#include <filesystem>
#include <functional>

#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::checkpoint {

// Reads the files that `index` names, each once by `read`. Throws CheckpointError: kCorrupt for a broken index,
// one that names files outside of its folder, and a tensor that is not where the index says.
StateDict read_shards(const std::filesystem::path& index,
                      const std::function<StateDict(const std::filesystem::path&)>& read);

}  // namespace lockstep::checkpoint
