// Which kind of file a path names, told by content; the parts of a file; the names of checkpoints.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

enum class FileKind {
  kTorchZip,
  kTorchLegacy,  // before PyTorch 1.6
  kSharded,      // files of state dicts with an index, as Hugging Face's libraries write them; or their folder
  kTensors,      // safetensors, and all that is not one of the others
};

// The first bytes of a file. A safetensors file begins with the length of its header, which is far below what the first
// bytes of torch.save would mean, and a brace.
using FileHead = std::array<char, 9>;
inline bool begins_tensor_file(const FileHead& head) {
  return head[8] == '{' && head[7] == 0;
}

// What a file is that is often found in place of weights; empty for every other.
inline constexpr std::size_t kShownHead = 64;
std::string other_file(std::string_view head);

// Throws CheckpointError with the path; kUnsupported for a folder of torch.distributed.checkpoint.
FileKind file_kind_of(const std::filesystem::path& path);

// The index of a sharded state dict, from its own path or that of its folder; empty when there is none.
std::filesystem::path index_of_shards(const std::filesystem::path& path);

// Whether an entry of a state dict is what Python's Module.get_extra_state() returns: anything.
bool is_extra_state(std::string_view name);

// The first keys of a dict, for messages.
std::string keys_of(const c10::impl::GenericDict& dict);

// The value under the key `entry` of a dict; all of it when `entry` is empty. Throws CheckpointError (kMismatch) that
// lists the keys.
c10::IValue entry_of(const c10::IValue& value, std::string_view entry);

// The name of a checkpoint of a CheckpointManager, "step-000000042.ckpt", and the step in one.
std::string checkpoint_name(std::int64_t step);
std::optional<std::int64_t> step_of_checkpoint(std::string_view name);

}  // namespace lockstep::checkpoint
