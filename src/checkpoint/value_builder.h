// Makes LibTorch's values from a pickle that has been read (pickle_graph.h).
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>

#include "python/pickle_graph.h"

namespace lockstep::checkpoint {

// A storage as a pickle describes it.
struct StorageFields {
  std::string key;
  std::string dtype;  // "float32"; "" when `count` is in bytes
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};

// Calls `each` for every storage in the pickle, also when several are the same one. Throws CheckpointError.
void for_each_storage(const PickleGraph& graph, const std::function<void(const StorageFields&)>& each);

// Makes the root's value. `storage_of` returns the memory of a storage, which has at least `bytes` bytes. Throws
// CheckpointError; its message begins with the place of the value, such as ["optimizer"]["state"][0].
c10::IValue build_value(const PickleGraph& graph, const std::function<c10::Storage(const StorageFields&)>& storage_of);

}  // namespace lockstep::checkpoint
