// Files of Lockstep and of Python as one value: what `lockstep checkpoint` works on.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

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

// Reads a file of torch.save, a safetensors file, a checkpoint of Lockstep, or a folder: a distributed checkpoint, a
// state dict in several files, or that of a CheckpointManager, of which the highest step is read. `entry`: the key of a
// dict in it, "" for all.
//
// A checkpoint of Lockstep becomes the dict that a trainer in Python would have: "model", "optimizer" (for
// load_state_dict), "scheduler", "generators", "values", "step", "metric".
//
// Throws CheckpointError, whose text names the file.
AnyFile read_any_file(const std::filesystem::path& path, std::string_view entry = "",
                      Checksum checksum = Checksum::kIfPresent);

// Files of a CheckpointManager's folder, by step; empty for every other path.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
