#include "any_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/number_text.h"
#include "base/printable.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_checksum.h"
#include "checkpoint/file/file_kind.h"
#include "checkpoint/file/tensor_file_header.h"
#include "checkpoint/interchange/optimizer_dict.h"
#include "checkpoint/interchange/torch_bytes.h"
#include "checkpoint/python/zip_file.h"
#include "checkpoint/state/file_values.h"
#include "checkpoint/state/value_text.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Dict = c10::impl::GenericDict;

// The entries whose names begin with `prefix`, without it, as a dict; `value_of` makes the values.
template <typename Map, typename ValueOf>
Dict part_of(const Map& map, const std::string& prefix, DictGrowth& growth, ValueOf value_of) {
  std::vector<std::pair<c10::IValue, c10::IValue>> entries;
  for (auto entry = map.lower_bound(prefix); entry != map.end() && entry->first.starts_with(prefix); ++entry) {
    entries.emplace_back(entry->first.substr(prefix.size()), value_of(entry->second));
  }
  return growth.make(entries);
}

c10::IValue tensor_value(const torch::Tensor& tensor) {
  return tensor;
}

// A program's own values.
Dict own_values_of(const TensorFile& file, DictGrowth& growth) {
  std::vector<std::pair<c10::IValue, c10::IValue>> values;
  for (auto entry = file.metadata.lower_bound(std::string(kValuePrefix));
       entry != file.metadata.end() && entry->first.starts_with(kValuePrefix); ++entry) {
    const std::string name = entry->first.substr(kValuePrefix.size());
    values.emplace_back(name, in_context(fmt::format("value \"{}\"", printable(name)),
                                         [&] { return own_value(file, name, entry->second, growth); }));
  }
  return growth.make(values);
}

template <typename T>
void add_number(Dict& run, const TensorFile& file, const char* name) {
  const auto found = file.metadata.find(name);
  if (found == file.metadata.end()) return;
  const auto number = number_from_text<T>(found->second);
  if (!number)
    throw CheckpointError(ErrorCode::kCorrupt, fmt::format("its {} is no number: {:.40}", name, found->second));
  run.insert(name, *number);
}

c10::IValue run_of(const TensorFile& file) {
  DictGrowth growth;
  Dict run(c10::AnyType::get(), c10::AnyType::get());
  const auto add = [&](const char* name, const Dict& part) {
    if (!part.empty()) run.insert(name, part);
  };
  add("model", part_of(file.tensors, "model.", growth, tensor_value));
  if (file.metadata.contains("optimizer.type")) run.insert("optimizer", python_optimizer(file));
  if (file.metadata.contains("scheduler.type")) run.insert("scheduler", python_scheduler(file));
  add("generators", part_of(file.tensors, "generator.", growth, tensor_value));
  add("tensors", part_of(file.tensors, "tensors.", growth, tensor_value));
  add("values", own_values_of(file, growth));
  add_number<std::int64_t>(run, file, "step");
  add_number<double>(run, file, "metric");
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

AnyFile read_tensors(const fs::path& path, Checksum checksum) {
  const auto metadata = read_tensor_file_metadata(path);
  const TensorFile file = read_tensor_file(path, checksum);
  AnyFile read{path, "safetensors", "its structure; it has no checksum", {}, {}, {}};
  for (const ChecksumKind& kind : {kSha256, kCrc32}) {
    if (checksum != Checksum::kIgnored && metadata.contains(std::string(kind.key)))
      read.checked = fmt::format("its {}", kind.name);
  }
  if (is_checkpoint(metadata, file)) {
    read.format = "checkpoint of Lockstep";
    read.value = in_context(path.native(), [&] { return run_of(file); });
    for (const auto& [name, text] : file.metadata) {
      if (name.starts_with(kValuePrefix) && !has_type(file, std::string_view(name).substr(kValuePrefix.size())))
        read.untyped.push_back(name.substr(kValuePrefix.size()));
    }
    return read;
  }
  read.value = in_context(path.native(), [&] {
    DictGrowth growth;
    return c10::IValue(part_of(file.tensors, "", growth, tensor_value));
  });
  return read;
}

// The writer may have calculated no CRCs (torch.serialization.set_crc32_options(False)).
std::string checked_in_zip(const fs::path& path) {
  ReadAllowance allowance;
  const std::vector<ZipEntry> entries =
      in_context(path.native(), [&] { return read_zip_directory(FileBytes(path), allowance); });
  const bool all = std::all_of(entries.begin(), entries.end(),
                               [](const ZipEntry& entry) { return entry.crc != 0 || entry.size == 0; });
  return all ? "the CRC-32 of each part" : "its structure; it has parts without a checksum";
}

AnyFile read_torch(const fs::path& path, const char* format, const std::string& checked, std::string_view entry) {
  TypeChanges changes(entry);
  ReadAllowance allowance;
  c10::IValue value = read_torch_file(path, torch::kCPU, allowance, &changes);
  return {path, format, checked, std::move(value), {}, changes.lines()};
}

AnyFile read_all(const fs::path& path, std::string_view entry, Checksum checksum) {
  switch (file_kind_of(path)) {
    case FileKind::kTorchZip: return read_torch(path, "torch.save (zip)", checked_in_zip(path), entry);
    case FileKind::kTorchLegacy:
      return read_torch(path, "torch.save (older format)", "its structure; it has no checksum", entry);
    case FileKind::kSharded:
      return {path,
              "state dict in several files",
              "the checksums of files that have one; the index has none",
              to_ivalue(read_state_dict(path, torch::kCPU, "", checksum)),
              {},
              {}};
    case FileKind::kTensors: break;
  }
  return read_tensors(path, checksum);
}

}  // namespace

std::vector<fs::path> checkpoints_in(const fs::path& path) {
  std::vector<fs::path> files;
  if (!fs::is_directory(path)) return files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (step_of_checkpoint(entry.path().filename().native())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return *step_of_checkpoint(a.filename().native()) < *step_of_checkpoint(b.filename().native());
  });
  return files;
}

AnyFile read_any_file(const fs::path& path, std::string_view entry, Checksum checksum) {
  const std::vector<fs::path> checkpoints = in_context(path.native(), [&] { return checkpoints_in(path); });
  AnyFile read = read_all(checkpoints.empty() ? path : checkpoints.back(), entry, checksum);
  read.value = in_context(read.path.native(), [&] { return entry_of(read.value, entry); });
  return read;
}

}  // namespace lockstep::checkpoint
