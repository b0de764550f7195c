#include "file_kind.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "base/number_text.h"
#include "base/printable.h"
#include "file_bytes.h"
#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".ckpt";
constexpr std::string_view kIndex = ".index.json";

[[noreturn]] void refuse_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path / ".metadata", ignored)) {
    throw CheckpointError(
        ErrorCode::kUnsupported,
        fmt::format("{}: expected a file, found a distributed checkpoint of Python: make a file of it "
                    "with python -m torch.distributed.checkpoint.format_utils dcp_to_torch {} FILE.pt",
                    path.native(), path.native()));
  }
  std::string instead;
  for (const char* const name : {"model.safetensors", "checkpoints"}) {  // a training's folder has them
    if (std::filesystem::exists(path / name, ignored))
      instead += fmt::format("{}{}", instead.empty() ? "; give " : " or ", (path / name).native());
  }
  throw CheckpointError(ErrorCode::kNotFound,
                        fmt::format("{}: expected a file, or a folder with checkpoints (step-NUMBER.ckpt) or with an "
                                    "index of several files (NAME{}); this folder has none of these{}",
                                    path.native(), kIndex, instead));
}

}  // namespace

std::string other_file(std::string_view head) {
  if (head.starts_with("version https://git-lfs.")) {
    return "it is a pointer of git-lfs, not the file itself: run `git lfs pull` in its repository";
  }
  const std::size_t begin = head.find_first_not_of(" \t\r\n");
  const std::string_view text = head.substr(std::min(begin, head.size()));
  const auto begins = [&](std::string_view tag) {
    return text.size() >= tag.size() && ::strncasecmp(text.data(), tag.data(), tag.size()) == 0;
  };
  if (begins("<!doctype") || begins("<html") || begins("<?xml")) {
    return "it is a web page, as a failed download leaves: fetch the file itself";
  }
  return "";
}

std::filesystem::path index_of_shards(const std::filesystem::path& path) {
  std::error_code error;
  if (path.native().ends_with(kIndex)) return path;
  // A folder may have the same weights in two formats.
  std::vector<std::filesystem::path> tensors;
  std::vector<std::filesystem::path> others;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().native();
    if (name.ends_with(kIndex))
      (name.find(".safetensors.") != std::string::npos ? tensors : others).push_back(entry->path());
  }
  const auto& found = tensors.empty() ? others : tensors;
  if (found.size() > 1) {
    throw CheckpointError(ErrorCode::kMismatch,
                          fmt::format("{}: it has several indexes, such as {} and {}: name one", path.native(),
                                      found[0].filename().native(), found[1].filename().native()));
  }
  return found.empty() ? std::filesystem::path() : found[0];
}

FileKind file_kind_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    if (!index_of_shards(path).empty()) return FileKind::kSharded;
    refuse_folder(path);
  }
  if (path.native().ends_with(kIndex)) return FileKind::kSharded;
  const FileBytes file(path);
  FileHead head{};
  if (file.size() < head.size()) return FileKind::kTensors;
  file.read(0, head.data(), head.size());
  if (begins_tensor_file(head)) return FileKind::kTensors;
  if (head[0] == 'P' && head[1] == 'K') return FileKind::kTorchZip;
  return head[0] == '\x80' ? FileKind::kTorchLegacy : FileKind::kTensors;
}

bool is_extra_state(std::string_view name) {
  constexpr std::string_view kName = "_extra_state";
  return name.ends_with(kName) && (name.size() == kName.size() || name[name.size() - kName.size() - 1] == '.');
}

std::string keys_of(const c10::impl::GenericDict& dict) {
  constexpr std::size_t kShown = 20;
  std::vector<std::string> keys;
  for (const auto& entry : dict) {
    if (keys.size() == kShown) return fmt::format("{}, ... ({} in all)", fmt::join(keys, ", "), dict.size());
    keys.push_back(entry.key().isString() ? printable(entry.key().toStringRef().substr(0, 80)) : "a number");
  }
  return fmt::format("{}", fmt::join(keys, ", "));
}

c10::IValue entry_of(const c10::IValue& value, std::string_view entry) {
  if (entry.empty()) return value;
  if (!value.isGenericDict()) throw CheckpointError(ErrorCode::kMismatch, "it holds no dict");
  const c10::impl::GenericDict dict = value.toGenericDict();
  const auto found = dict.find(std::string(entry));
  if (found == dict.end()) {
    throw CheckpointError(ErrorCode::kMismatch,
                          fmt::format("it has no entry \"{}\"; it has: {}", entry, keys_of(dict)));
  }
  return found->value();
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:09}{}", kPrefix, step, kSuffix);
}

std::optional<std::int64_t> step_of_checkpoint(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  const auto step = number_from_text<std::int64_t>(name);
  return step && *step >= 0 ? step : std::nullopt;
}

}  // namespace lockstep::checkpoint
