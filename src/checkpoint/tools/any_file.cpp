#include "any_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "checkpoint/error_context.h"
#include "checkpoint/file_kind.h"
#include "checkpoint/number_text.h"
#include "checkpoint/optimizer_dict.h"
#include "checkpoint/tensor_file_header.h"
#include "checkpoint/value_text.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/distributed_checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Dict = c10::impl::GenericDict;

Dict make_dict() {
  return Dict(c10::AnyType::get(), c10::AnyType::get());
}

// The entries whose names begin with `prefix`, without it, as a dict; `value_of` makes the values.
template <typename Map, typename ValueOf>
Dict part_of(const Map& map, const std::string& prefix, ValueOf value_of) {
  Dict part = make_dict();
  for (auto entry = map.lower_bound(prefix); entry != map.end() && entry->first.starts_with(prefix); ++entry) {
    part.insert(entry->first.substr(prefix.size()), value_of(entry->second));
  }
  return part;
}

// Values are text in the file, whatever they were.
c10::IValue value_from(const std::string& text) {
  if (const auto whole = number_from_text<std::int64_t>(text)) return *whole;
  if (const auto real = number_from_text<double>(text)) return *real;
  if (text.starts_with("{\"dict\":") || text.starts_with("{\"tuple\":")) {
    try {
      return value_of_text(text);
    } catch (const CheckpointError&) {  // a text that only looks like it
    }
  }
  return text;
}

c10::IValue scheduler_from(const TensorFile& file) {
  const auto state = file.metadata.find("scheduler.state");
  if (state != file.metadata.end()) return value_of_text(state->second);
  return part_of(file.metadata, "scheduler.", value_from);
}

c10::IValue run_of(const TensorFile& file) {
  const auto tensor = [](const torch::Tensor& found) { return c10::IValue(found); };
  Dict run = make_dict();
  const auto add = [&](const char* name, const Dict& part) {
    if (!part.empty()) run.insert(name, part);
  };
  add("model", part_of(file.tensors, "model.", tensor));
  if (file.metadata.contains("optimizer.type")) run.insert("optimizer", python_optimizer(file));
  if (file.metadata.contains("scheduler.type")) run.insert("scheduler", scheduler_from(file));
  add("generators", part_of(file.tensors, "generator.", tensor));
  add("tensors", part_of(file.tensors, "tensors.", tensor));
  add("values", part_of(file.metadata, "value.", value_from));
  for (const char* name : {"step", "metric"}) {
    if (const auto found = file.metadata.find(name); found != file.metadata.end()) {
      run.insert(name, value_from(found->second));
    }
  }
  return run;
}

// Files of write_state_dict() say which library their names are for; checkpoints do not.
bool is_checkpoint(const std::map<std::string, std::string>& metadata, const TensorFile& file) {
  constexpr std::array<std::string_view, 4> kParts = {"model.", "optimizer.param.", "generator.", "tensors."};
  return metadata.contains(std::string(kFormatKey)) && !metadata.contains("format") &&
         std::all_of(file.tensors.begin(), file.tensors.end(), [&](const auto& tensor) {
           return std::any_of(kParts.begin(), kParts.end(),
                              [&](std::string_view part) { return tensor.first.starts_with(part); });
         });
}

AnyFile read_tensors(const fs::path& path) {
  const auto metadata = read_tensor_file_metadata(path);
  const bool checksum = metadata.contains(std::string(kChecksumKey));
  const TensorFile file = read_tensor_file(path, Checksum::kIfPresent);
  AnyFile read{path, "safetensors", checksum ? "its SHA-256" : "its structure; it has no checksum", {}};
  if (is_checkpoint(metadata, file)) {
    read.format = "checkpoint of Lockstep";
    read.value = in_context(path.native(), [&] { return run_of(file); });
    return read;
  }
  Dict tensors = make_dict();
  for (const auto& [name, tensor] : file.tensors) tensors.insert(name, tensor);
  read.value = tensors;
  return read;
}

AnyFile read_all(const fs::path& path) {
  switch (file_kind_of(path)) {
    case FileKind::kDistributed:
      return {path, "distributed checkpoint", "the CRC-32 of each part", read_distributed_checkpoint(path)};
    case FileKind::kTorchZip: return {path, "torch.save (zip)", "the CRC-32 of each part", read_torch_file(path)};
    case FileKind::kTorchLegacy:
      return {path, "torch.save (older format)", "its structure; it has no checksum", read_torch_file(path)};
    case FileKind::kTensors: break;
  }
  return read_tensors(path);
}

}  // namespace

std::vector<fs::path> checkpoints_in(const fs::path& path) {
  std::vector<fs::path> files;
  if (!fs::is_directory(path) || fs::exists(path / ".metadata")) return files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (step_of_checkpoint(entry.path().filename().native())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return *step_of_checkpoint(a.filename().native()) < *step_of_checkpoint(b.filename().native());
  });
  return files;
}

AnyFile read_any_file(const fs::path& path, std::string_view entry) {
  const std::vector<fs::path> checkpoints = in_context(path.native(), [&] { return checkpoints_in(path); });
  AnyFile read = read_all(checkpoints.empty() ? path : checkpoints.back());
  read.value = in_context(read.path.native(), [&] { return entry_of(read.value, entry); });
  return read;
}

}  // namespace lockstep::checkpoint
