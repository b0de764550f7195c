// Makes LibTorch's values from a pickle that has been read (pickle_graph.h): first what it says about tensors, that is
// storages, shapes and strides, then the values. Functions throw CheckpointError: kCorrupt, and kUnsupported for what
// cannot be read. What comes before build_value() is defined in tensor_parts.cpp.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/python/pickle_graph.h"
#include "torch_bytes.h"

namespace lockstep::checkpoint {

// A storage as a pickle describes it.
struct StorageFields {
  std::string key;
  std::string dtype;  // "float32"; "" when `count` is in bytes
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};

// Throws kUnsupported. What is being built becomes a foreign value (file_values.h), of which `what` says what it is.
[[noreturn]] void refuse_object(const std::string& what);

const PickleName& name_at(const PickleGraph& graph, PickleId id);
std::int64_t count_at(const PickleGraph& graph, PickleId id);
const std::string& text_at(const PickleGraph& graph, PickleId id);
// A tuple, a list or a torch.Size.
std::vector<std::int64_t> counts_at(const PickleGraph& graph, PickleId id);

// ("storage", type, key, device, count), in files of the older format with None as sixth field.
StorageFields storage_fields(const PickleGraph& graph, PickleId id);

// Throws when an element would lie outside of the storage, or when copying the tensor would take absurd memory.
void require_inside(const StorageFields& fields, std::size_t element, std::int64_t offset,
                    const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides);

// Calls `each` for every storage in the pickle, also when several are the same one, but not for those of unknown types.
// Returns whether there are none of these.
bool for_each_storage(const PickleGraph& graph, const std::function<void(const StorageFields&)>& each);

// Makes the root's value. What cannot be read in it is a foreign value (file_values.h). `storage_of` returns the
// memory of a storage, which has at least `bytes` bytes. Throws CheckpointError; its message begins with the place of
// the value, such as ["optimizer"]["state"][0]. `changes` may be null.
c10::IValue build_value(const PickleGraph& graph, const std::function<c10::Storage(const StorageFields&)>& storage_of,
                        TypeChanges* changes = nullptr);

}  // namespace lockstep::checkpoint
