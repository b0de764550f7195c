#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_bytes.h"
#include "checkpoint/file/file_kind.h"
#include "checkpoint/file/state_tensor_file.h"
#include "checkpoint/state/file_values.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/checkpoint/torch_file.h"
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

constexpr std::uint64_t kMostIndexBytes = 100'000'000;  // as headers of safetensors files

// The names of the tensors of each file. Keeps "weight_map" alone of {"metadata": {...}, "weight_map": {NAME: FILE}},
// so that nothing in the file is nested in memory.
class IndexReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::map<std::string, std::string> file_of;  // by tensor

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool string(string_t& value) override {
    if (!in_map()) return true;
    if (!file_of.emplace(key_, value).second) damaged(fmt::format("\"{}\" is there twice", shown(key_)));
    return true;
  }
  bool start_object(std::size_t) override { return begin(); }
  bool start_array(std::size_t) override { return begin(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& value) override {
    if (depth_ == 1) part_ = value;
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    damaged(fmt::format("the index is no JSON object (at its byte {})", position));
  }

  static std::string shown(std::string_view name) { return printable(name.substr(0, kShown)); }

 private:
  bool in_map() const { return depth_ == 2 && part_ == "weight_map"; }
  bool other() const {
    if (in_map()) damaged(fmt::format("the file of \"{}\" is no text", shown(key_)));
    return true;
  }
  bool begin() {
    other();
    ++depth_;
    return true;
  }
  bool end() {
    --depth_;
    return true;
  }

  static constexpr std::size_t kShown = 100;  // characters of a name

  std::size_t depth_ = 0;
  std::string part_;  // key of the outer object
  std::string key_;
};

// The state dict of several files, with an index that says which tensor is in which file. Reads the files that `index`
// names, each once by `read`. Throws CheckpointError: kCorrupt for a broken index, one that names files outside of its
// folder, and a tensor that is not where the index says.
StateDict read_shards(const std::filesystem::path& index,
                      const std::function<StateDict(const std::filesystem::path&)>& read) {
  return in_context(index.native(), [&] {
    const FileBytes file(index);
    if (file.size() > kMostIndexBytes) damaged(fmt::format("an index of {} bytes", file.size()));
    std::string text(file.size(), '\0');
    file.read(0, text.data(), text.size());
    IndexReader reader;
    nlohmann::json::sax_parse(text, &reader);
    if (reader.file_of.empty()) damaged("the index has no \"weight_map\" of names and files");
    std::map<std::string, StateDict> files;
    StateDict all;
    for (const auto& [name, shard] : reader.file_of) {
      const bool plain = !shard.empty() && shard != "." && shard != ".." && shard.find('/') == std::string::npos &&
                         shard.find('\0') == std::string::npos && !shard.ends_with(".index.json");
      if (!plain) damaged(fmt::format("the index names the file \"{}\"", IndexReader::shown(shard)));
      if (!files.contains(shard)) files[shard] = read(index.parent_path() / shard);
      const torch::Tensor* tensor = files[shard].find(name);
      if (tensor == nullptr && is_extra_state(name)) continue;
      if (tensor == nullptr) {
        damaged(fmt::format("tensor \"{}\" is not in {}", IndexReader::shown(name), IndexReader::shown(shard)));
      }
      all.insert(name, *tensor);
    }
    return all;
  });
}

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
  if (kind != FileKind::kSharded) return read_file(path, kind, map_location, entry, checksum, allowance);
  return read_shards(index_of_shards(path), [&](const std::filesystem::path& shard) {
    std::error_code ignored;
    const bool is_folder = std::filesystem::is_directory(shard, ignored);
    const FileKind of_shard = is_folder ? FileKind::kSharded : file_kind_of(shard);
    if (of_shard == FileKind::kSharded)
      damaged(fmt::format("the index names {}, which is no single file", shard.filename().native()));
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
