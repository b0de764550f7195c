// Makes LibTorch's values from a pickle that has been read (pickle_graph.h).
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/python/pickle_graph.h"
#include "tensor_parts.h"

namespace lockstep::checkpoint {

// Which types of Python have become others.
class TypeChanges {
 public:
  // `entry`: the key of the dict to which the changes belong; "" for all.
  explicit TypeChanges(std::string_view entry = "");
  // Says where the next values are, if they are parts of a larger value: ["model"]["size"].
  void set_base(std::string place) { base_ = std::move(place); }
  void add(const char* what, const std::string& place);
  // A line for each kind of change, with the first places.
  std::vector<std::string> lines() const;

 private:
  struct Places {
    std::uint64_t count = 0;
    std::vector<std::string> first;
  };
  std::string under_;
  std::string base_;
  std::map<std::string, Places> changes_;
};

// The place of a dict's value: ["key"].
std::string key_place(std::string_view key);

// Makes the root's value. What cannot be read in it is a foreign value (foreign_value.h). `storage_of` returns the
// memory of a storage, which has at least `bytes` bytes. Throws CheckpointError; its message begins with the place of
// the value, such as ["optimizer"]["state"][0]. `changes` may be null.
c10::IValue build_value(const PickleGraph& graph, const std::function<c10::Storage(const StorageFields&)>& storage_of,
                        TypeChanges* changes = nullptr);

}  // namespace lockstep::checkpoint
