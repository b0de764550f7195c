// Makes LibTorch's values from a pickle that has been read (pickle_graph.h).
#pragma once

#include <torch/torch.h>

#include <functional>

#include "checkpoint/python/pickle_graph.h"
#include "tensor_parts.h"

namespace lockstep::checkpoint {

// Makes the root's value. What cannot be read in it is a foreign value (foreign_value.h). `storage_of` returns the
// memory of a storage, which has at least `bytes` bytes. Throws CheckpointError; its message begins with the place of
// the value, such as ["optimizer"]["state"][0].
c10::IValue build_value(const PickleGraph& graph, const std::function<c10::Storage(const StorageFields&)>& storage_of);

}  // namespace lockstep::checkpoint
