#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/file/damaged.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_kind.h"
#include "checkpoint/file/state_tensor_file.h"
#include "checkpoint/state/dict_growth.h"
#include "checkpoint/state/foreign_value.h"
#include "lockstep/checkpoint/distributed_checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/checkpoint/torch_file.h"
#include "sharded_files.h"
#include "torch_bytes.h"

namespace lockstep::checkpoint {

StateDict to_state_dict(const c10::IValue& value) {
  if (const std::string* what = foreign_text(value)) {
    throw CheckpointError(ErrorCode::kUnsupported,
                          fmt::format("expected a dict of tensors, found {}{}", *what, kForeignRefused));
  }
  if (!value.isGenericDict()) {
    throw CheckpointError(ErrorCode::kMismatch, fmt::format("expected a dict of tensors, found {}", value.tagKind()));
  }
  const c10::impl::GenericDict dict = value.toGenericDict();
  StateDict state;
  for (const auto& entry : dict) {
    if (entry.key().isString() && !entry.value().isTensor() && is_extra_state(entry.key().toStringRef())) continue;
    if (!entry.key().isString() || !entry.value().isTensor()) {
      throw CheckpointError(
          ErrorCode::kMismatch,
          fmt::format("expected a dict of tensors, found a dict with other values, whose keys are: {}. "
                      "Name the entry that is the state dict",
                      keys_of(dict)));
    }
    state.insert(entry.key().toStringRef(), entry.value().toTensor());
  }
  return state;
}

c10::IValue to_ivalue(const StateDict& state) {
  std::vector<std::pair<c10::IValue, c10::IValue>> entries;
  for (const auto& entry : state) entries.emplace_back(entry.key(), *entry);
  return DictGrowth().make(entries);
}

namespace {

// Of one file, which may be a part of a state dict.
StateDict read_file(const std::filesystem::path& path, FileKind kind, torch::Device map_location,
                    std::string_view entry, Checksum checksum, ReadAllowance& allowance) {
  if (kind != FileKind::kTensors) {
    const c10::IValue value = read_torch_file(path, map_location, allowance);
    return in_context(path.native(), [&] { return to_state_dict(entry_of(value, entry)); });
  }
  std::optional<TensorFile> mapped = map_tensor_file(path, checksum);
  TensorFile file = mapped ? *std::move(mapped) : read_tensor_file(path, checksum);
  if (!entry.empty()) {
    throw CheckpointError(ErrorCode::kMismatch,
                          fmt::format("{}: a safetensors file has no entries such as \"{}\"", path.native(), entry));
  }
  return in_context(path.native(), [&] {
    StateDict state;
    for (auto& [name, tensor] : file.tensors) state.insert(name, tensor.to(map_location));
    return state;
  });
}

}  // namespace

StateDict read_state_dict(const std::filesystem::path& path, torch::Device map_location, std::string_view entry,
                          Checksum checksum) {
  const FileKind kind = file_kind_of(path);
  ReadAllowance allowance;
  if (kind == FileKind::kDistributed) {
    const c10::IValue value = read_distributed_checkpoint(path, map_location);
    return in_context(path.native(), [&] { return to_state_dict(entry_of(value, entry)); });
  }
  if (kind != FileKind::kSharded) return read_file(path, kind, map_location, entry, checksum, allowance);
  return read_shards(index_of_shards(path), [&](const std::filesystem::path& shard) {
    const FileKind of_shard = file_kind_of(shard);
    if (of_shard == FileKind::kDistributed || of_shard == FileKind::kSharded) {
      damaged(fmt::format("the index names {}, which is no single file", shard.filename().native()));
    }
    return read_file(shard, of_shard, map_location, "", checksum, allowance);
  });
}

void write_state_dict(const std::filesystem::path& path, const StateDict& state) {
  for (const auto& entry : state) {
    if (entry->defined()) continue;
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          fmt::format("{}: tensor \"{}\" is undefined", path.native(), entry.key()));
  }
  if (path.extension() != ".safetensors") return write_torch_file(path, to_ivalue(state));
  TensorFile file;
  for (const auto& entry : state) file.tensors[entry.key()] = *entry;
  file.metadata["format"] = "pt";  // Hugging Face's libraries ask for it
  write_state_tensor_file(path, file);
}

}  // namespace lockstep::checkpoint
