// What a pickle says about tensors, before any is made: its storages, shapes, strides. Functions throw CheckpointError:
// kCorrupt, and kUnsupported for what cannot be read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/python/pickle_graph.h"

namespace lockstep::checkpoint {

// A storage as a pickle describes it.
struct StorageFields {
  std::string key;
  std::string dtype;  // "float32"; "" when `count` is in bytes
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};

// Throws kUnsupported. What is being built becomes a foreign value (foreign_value.h), of which `what` says what it is.
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

}  // namespace lockstep::checkpoint
