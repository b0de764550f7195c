#include "file_kind.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <system_error>
#include <vector>

#include "base/number_text.h"
#include "base/printable.h"
#include "lockstep/checkpoint/errors.h"
#include "python/file_bytes.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".ckpt";

}  // namespace

FileKind file_kind_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return FileKind::kDistributed;
  const FileBytes file(path);
  FileHead head{};
  if (file.size() < head.size()) return FileKind::kTensors;
  file.read(0, head.data(), head.size());
  if (begins_tensor_file(head)) return FileKind::kTensors;
  if (head[0] == 'P' && head[1] == 'K') return FileKind::kTorchZip;
  return head[0] == '\x80' ? FileKind::kTorchLegacy : FileKind::kTensors;
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
