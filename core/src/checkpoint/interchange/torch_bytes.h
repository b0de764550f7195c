// What read_torch_file() does, for bytes that are a file or a part of one. Defined in torch_file_reader.cpp,
// and in distributed_checkpoint.cpp.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/file/file_bytes.h"

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

// Throws CheckpointError without a path. `changes` may be null.
c10::IValue read_torch_bytes(const FileBytes& file, torch::Device device, ReadAllowance& allowance,
                             TypeChanges* changes = nullptr);

// read_torch_file() and read_distributed_checkpoint() that note which types have changed. `changes` may be null.
c10::IValue read_torch_file(const std::filesystem::path& path, torch::Device map_location, ReadAllowance& allowance,
                            TypeChanges* changes = nullptr);
c10::IValue read_distributed_checkpoint(const std::filesystem::path& folder, torch::Device map_location,
                                        TypeChanges* changes);

}  // namespace lockstep::checkpoint
