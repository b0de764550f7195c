// Files of Lockstep and of Python as one value, and their tensors: what `lockstep checkpoint` works on.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file/tensor_rules.h"
#include "checkpoint/python/pickle_names.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

struct AnyFile {
  std::filesystem::path path;  // of the file that was read, also when a folder was named
  std::string format;          // for messages: "torch.save (zip)"
  std::string checked;         // what reading it has compared: "its SHA-256"
  c10::IValue value;           // the content, as Python would have it
  // Names of a checkpoint's values whose types it does not have: an older version has written it. They are text.
  std::vector<std::string> untyped;
  std::vector<std::string> changed;  // lines that say which types of a file of torch.save have become others
};

// Reads a file of torch.save, a safetensors file, a checkpoint of Lockstep, or a folder. A folder
// holds a state dict in several files, or the checkpoints of a CheckpointManager, and then the highest step is read.
// `entry`: the key of a dict in the file, "" for all.
//
// A checkpoint of Lockstep becomes the dict that a trainer in Python would have: "model", "optimizer" (for
// load_state_dict), "scheduler", "generators", "values", "step", "metric".
//
// Throws CheckpointError, whose text names the file.
AnyFile read_any_file(const std::filesystem::path& path, std::string_view entry = "",
                      Checksum checksum = Checksum::kIfPresent);

// Files of a CheckpointManager's folder, by step; empty for every other path.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& path);

// --- Tensors of files from anyone, for calculations and messages

inline std::string dtype_text(const torch::Tensor& tensor) {
  const DtypeNames* names = find_dtype(tensor.scalar_type());
  return names == nullptr ? c10::toString(tensor.scalar_type()) : std::string(names->name);
}

// A text of a file for a message: it may be long.
inline std::string shown_text(std::string_view text, std::size_t most = 200) {
  return std::string(text.substr(0, most)) + (text.size() > most ? "..." : "");
}

// What is calculated or written value by value. Strides let a short file have tensors of any size, and references any
// number of them.
class ValueBudget {
 public:
  // Notes the values of a tensor. Throws CheckpointError (kUnsupported) when they are far more than their memory has.
  void add(const torch::Tensor& tensor) {
    if (!tensor.defined() || !why_not_saved(tensor).empty()) return;
    if (memory_.insert(tensor.storage().unsafeGetStorageImpl()).second) held_ += tensor.storage().nbytes();
    used_ += tensor.nbytes();
    if (used_ <= kFree + kTimes * held_) return;
    throw CheckpointError(ErrorCode::kUnsupported,
                          fmt::format("its tensors repeat their elements: they have {} bytes of values in {} bytes of "
                                      "memory. Only a file of torch.save can hold that; make them contiguous() first",
                                      used_, held_));
  }

 private:
  static constexpr std::uint64_t kFree = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kTimes = 16;

  std::set<const void*> memory_;
  std::uint64_t held_ = 0;
  std::uint64_t used_ = 0;
};

}  // namespace lockstep::checkpoint
