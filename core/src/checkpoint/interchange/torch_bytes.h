// read_torch_file() that shares an allowance with other files, and notes which types have changed. Defined in
// torch_file_reader.cpp.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file/file_bytes.h"

namespace lockstep::checkpoint {

// Which types of Python have become others.
class TypeChanges {
 public:
  // `entry`: the key of the dict to which the changes belong; "" for all.
  explicit TypeChanges(std::string_view entry = "");
  void add(const char* what, const std::string& place);
  // A line for each kind of change, with the first places.
  std::vector<std::string> lines() const;

 private:
  struct Places {
    std::uint64_t count = 0;
    std::vector<std::string> first;
  };
  std::string under_;
  std::map<std::string, Places> changes_;
};

// The place of a dict's value: ["key"].
std::string key_place(std::string_view key);

// `changes` may be null.
c10::IValue read_torch_file(const std::filesystem::path& path, torch::Device map_location, ReadAllowance& allowance,
                            TypeChanges* changes = nullptr);

}  // namespace lockstep::checkpoint
