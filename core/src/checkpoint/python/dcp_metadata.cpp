#include "dcp_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/printable.h"
#include "lockstep/checkpoint/errors.h"
#include "pickle_reader.h"

namespace lockstep::checkpoint {
namespace {

using enum PickleRole;

constexpr std::size_t kMostIndices = 64;
constexpr std::size_t kMostSteps = 64;
constexpr std::size_t kMostTextBytes = 1024;
constexpr std::size_t kShownName = 100;

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kOlderModule = "torch.distributed._shard.sharded_tensor.metadata";  // before PyTorch 2.3

constexpr std::array kRecords = {
    PickleName{kModule, "Metadata", kRecord, ""},
    PickleName{kModule, "MetadataIndex", kRecord, ""},
    PickleName{kModule, "TensorStorageMetadata", kRecord, ""},
    PickleName{kModule, "BytesStorageMetadata", kRecord, ""},
    PickleName{kModule, "ChunkStorageMetadata", kRecord, ""},
    PickleName{kModule, "TensorProperties", kRecord, ""},
    PickleName{kModule, "_MEM_FORMAT_ENCODING", kRecord, ""},
    PickleName{kModule, "StorageMeta", kRecord, ""},
    PickleName{kOlderModule, "TensorProperties", kRecord, ""},
    PickleName{kOlderModule, "MEM_FORMAT_ENCODING", kRecord, ""},
    PickleName{"torch.distributed.checkpoint.filesystem", "_StorageInfo", kRecord, ""},
    PickleName{"torch.serialization", "_get_layout", kRecord, ""},
    // How Python names a member of an enum, _MEM_FORMAT_ENCODING. Nothing is called, here either.
    PickleName{"builtins", "getattr", kRecord, ""},
    // Where the checkpoint was saved. The path is not used.
    PickleName{"pathlib", "PosixPath", kRecord, ""},
    PickleName{"pathlib", "WindowsPath", kRecord, ""},
    PickleName{"pathlib._local", "PosixPath", kRecord, ""},
    PickleName{"pathlib._local", "WindowsPath", kRecord, ""},
};

const PickleName* find_name(std::string_view module, std::string_view name) {
  const auto found = std::find_if(kRecords.begin(), kRecords.end(), [&](const PickleName& known) {
    return known.name == name && known.module == module;
  });
  return found == kRecords.end() ? find_pickle_name(module, name) : &*found;
}

template <typename... Arguments>
[[noreturn]] void damaged_metadata(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw CheckpointError(ErrorCode::kCorrupt, "damaged: " + fmt::format(format, std::forward<Arguments>(arguments)...));
}

std::string shown_name(std::string_view name) {
  return printable(name.substr(0, kShownName));
}

PickleGraph read_graph(const FileBytes& file) {
  PickleInput input(file, 0, file.size());
  ReadAllowance allowance;
  return read_pickle(input, allowance, {find_name, /*refuses_foreign=*/true});
}

}  // namespace

class DcpMetadata::Record {
 public:
  Record(const DcpMetadata& metadata, PickleId id, std::string_view name) : graph_(metadata.graph_), name_(name) {
    if (!is(graph_, id, name)) damaged_metadata("a {} is expected, found another value", name);
    const std::vector<PickleId>& items = graph_.items(id);
    if (items.size() < 2) return;  // an object without fields
    fields_ = items.back();
    if (graph_.at(*fields_).kind != PickleKind::kDict) damaged_metadata("a {} has no dict of fields", name);
  }

  static bool is(const PickleGraph& graph, PickleId id, std::string_view name) {
    if (graph.at(id).kind != PickleKind::kCall) return false;
    const PickleValue& function = graph.at(graph.items(id)[0]);
    return function.kind == PickleKind::kName && function.name->role == kRecord && function.name->name == name;
  }

  // A field that is missing or None is nothing.
  std::optional<PickleId> find(std::string_view field) const {
    if (!fields_) return std::nullopt;
    const std::vector<PickleId>& items = graph_.items(*fields_);
    for (std::size_t i = 0; i < items.size() && i < 2 * kMostFields; i += 2) {
      if (graph_.at(items[i]).kind != PickleKind::kText || graph_.text(items[i]) != field) continue;
      if (graph_.at(items[i + 1]).kind == PickleKind::kNone) return std::nullopt;
      return items[i + 1];
    }
    return std::nullopt;
  }

  PickleId at(std::string_view field) const {
    if (const auto found = find(field)) return *found;
    damaged_metadata("a {} has no field {}", name_, field);
  }

  std::uint64_t count_at(std::string_view field) const {
    const PickleValue& value = graph_.at(at(field));
    if (value.kind != PickleKind::kInt || value.integer < 0)
      damaged_metadata("{} of a {} is no whole number", field, name_);
    return static_cast<std::uint64_t>(value.integer);
  }

 private:
  static constexpr std::size_t kMostFields = 32;

  const PickleGraph& graph_;
  std::string_view name_;
  std::optional<PickleId> fields_;
};

DcpMetadata::DcpMetadata(const FileBytes& file) : graph_(read_graph(file)) {
  const Record all(*this, graph_.root, "Metadata");
  read_places(all.at("storage_data"));
  const auto paths = all.find("planner_data");
  read_entries(all.at("state_dict_metadata"), paths ? read_paths(*paths) : std::map<std::string_view, PickleId>());
}

void DcpMetadata::read_places(PickleId id) {
  const std::vector<PickleId>& items = dict_items(id, "storage_data");
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const Record index(*this, items[i], "MetadataIndex");
    places_[text(index.at("fqn"), "a name")].emplace_back(items[i], items[i + 1]);
  }
}

std::map<std::string_view, PickleId> DcpMetadata::read_paths(PickleId id) const {
  const std::vector<PickleId>& items = dict_items(id, "planner_data");
  std::map<std::string_view, PickleId> paths;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    if (graph_.at(items[i + 1]).kind != PickleKind::kTuple)
      damaged_metadata("planner_data has a path that is no tuple");
    paths[text(items[i], "a name")] = items[i + 1];
  }
  return paths;
}

void DcpMetadata::read_entries(PickleId id, const std::map<std::string_view, PickleId>& paths) {
  const std::vector<PickleId>& items = dict_items(id, "state_dict_metadata");
  std::map<std::string_view, PickleId> seen;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    Entry entry{text(items[i], "a name"), items[i + 1], Record::is(graph_, items[i + 1], "TensorStorageMetadata")};
    if (!entry.is_tensor && !Record::is(graph_, items[i + 1], "BytesStorageMetadata")) {
      damaged_metadata("\"{}\" is neither a tensor nor an object", shown_name(entry.name));
    }
    if (!seen.emplace(entry.name, entry.about).second)
      damaged_metadata("\"{}\" is there twice", shown_name(entry.name));
    if (const auto path = paths.find(entry.name); path != paths.end()) {
      entry.path = path->second;
      entry.has_path = true;
    }
    entries_.push_back(entry);
  }
}

std::vector<DcpMetadata::Step> DcpMetadata::path(const Entry& entry) const {
  if (!entry.has_path) return {Step(entry.name)};
  const std::vector<PickleId>& items = graph_.items(entry.path);
  if (items.empty() || items.size() > kMostSteps) {
    damaged_metadata("\"{}\" has a path of {} keys", shown_name(entry.name), items.size());
  }
  std::vector<Step> steps;
  for (const PickleId item : items) {
    if (graph_.at(item).kind == PickleKind::kInt) {
      steps.emplace_back(graph_.at(item).integer);
    } else {
      steps.emplace_back(text(item, "a key"));
    }
  }
  return steps;
}

std::string_view DcpMetadata::dtype(const Entry& entry) const {
  const PickleId properties = Record(*this, entry.about, "TensorStorageMetadata").at("properties");
  if (!Record::is(graph_, properties, "TensorProperties"))
    damaged_metadata("\"{}\" has no properties", shown_name(entry.name));
  // Its fields are a tuple: dtype, layout, ...
  const PickleValue& fields = graph_.at(graph_.items(properties).back());
  if (fields.kind != PickleKind::kTuple || graph_.lists[fields.place].empty()) {
    damaged_metadata("\"{}\" has no dtype", shown_name(entry.name));
  }
  const PickleValue& dtype = graph_.at(graph_.lists[fields.place][0]);
  if (dtype.kind != PickleKind::kName || dtype.name->role != kDtype)
    damaged_metadata("\"{}\" has no dtype", shown_name(entry.name));
  return dtype.name->dtype;
}

std::vector<std::int64_t> DcpMetadata::sizes(const Entry& entry) const {
  return numbers(Record(*this, entry.about, "TensorStorageMetadata").at("size"), "a shape");
}

std::vector<DcpChunk> DcpMetadata::chunks(const Entry& entry) const {
  const PickleId list = Record(*this, entry.about, "TensorStorageMetadata").at("chunks");
  if (graph_.at(list).kind != PickleKind::kList)
    damaged_metadata("\"{}\" has no list of chunks", shown_name(entry.name));
  std::map<std::vector<std::int64_t>, PickleId> by_offsets;
  if (const auto found = places_.find(entry.name); found != places_.end()) {
    for (const auto& [index, info] : found->second) {
      const auto offset = Record(*this, index, "MetadataIndex").find("offset");
      if (!offset || !by_offsets.emplace(numbers(*offset, "an offset"), info).second) {
        damaged_metadata("\"{}\" has two chunks at one place, or one without a place", shown_name(entry.name));
      }
    }
  }
  std::vector<DcpChunk> chunks;
  for (const PickleId item : graph_.items(list)) {
    const Record chunk(*this, item, "ChunkStorageMetadata");
    const std::vector<std::int64_t> offsets = numbers(chunk.at("offsets"), "an offset");
    const auto info = by_offsets.find(offsets);
    if (info == by_offsets.end()) damaged_metadata("a chunk of \"{}\" is in no file", shown_name(entry.name));
    chunks.push_back({offsets, numbers(chunk.at("sizes"), "a size"), place_at(info->second)});
    by_offsets.erase(info);  // so that no bytes are used twice
  }
  return chunks;
}

DcpPlace DcpMetadata::place(const Entry& entry) const {
  const auto found = places_.find(entry.name);
  if (found == places_.end() || found->second.size() != 1)
    damaged_metadata("\"{}\" is in no file", shown_name(entry.name));
  return place_at(found->second[0].second);
}

DcpPlace DcpMetadata::place_at(PickleId storage_info) const {
  const Record info(*this, storage_info, "_StorageInfo");
  if (const auto transforms = info.find("transform_descriptors")) {
    const PickleKind kind = graph_.at(*transforms).kind;
    const bool none = (kind == PickleKind::kList || kind == PickleKind::kTuple) && graph_.items(*transforms).empty();
    if (!none) {
      throw CheckpointError(ErrorCode::kUnsupported,
                            "its files are compressed or changed in another way (transform_descriptors): save it "
                            "without extensions of the writer");
    }
  }
  return {text(info.at("relative_path"), "a file's name"), info.count_at("offset"), info.count_at("length")};
}

const std::vector<PickleId>& DcpMetadata::dict_items(PickleId id, std::string_view what) const {
  if (graph_.at(id).kind != PickleKind::kDict) damaged_metadata("{} is no dict", what);
  return graph_.items(id);
}

std::string_view DcpMetadata::text(PickleId id, std::string_view what) const {
  if (graph_.at(id).kind != PickleKind::kText) damaged_metadata("{} is no text", what);
  // A short file could use a long text many times, and each use is compared with others.
  if (graph_.text(id).size() > kMostTextBytes) damaged_metadata("{} has {} bytes", what, graph_.text(id).size());
  return graph_.text(id);
}

// A torch.Size, a tuple or a list of whole numbers.
std::vector<std::int64_t> DcpMetadata::numbers(PickleId id, std::string_view what) const {
  if (graph_.at(id).kind == PickleKind::kCall && graph_.items(id).size() == 2) {
    const PickleValue& function = graph_.at(graph_.items(id)[0]);
    if (function.name->role == kSize) id = graph_.items(id)[1];
  }
  const PickleKind kind = graph_.at(id).kind;
  if (kind != PickleKind::kTuple && kind != PickleKind::kList) damaged_metadata("{} is no tuple", what);
  const std::vector<PickleId>& items = graph_.items(id);
  if (items.size() > kMostIndices) damaged_metadata("{} has {} dimensions", what, items.size());
  std::vector<std::int64_t> found;
  for (const PickleId item : items) {
    const PickleValue& value = graph_.at(item);
    if (value.kind != PickleKind::kInt || value.integer < 0)
      damaged_metadata("{} has a part that is no whole number", what);
    found.push_back(value.integer);
  }
  return found;
}

}  // namespace lockstep::checkpoint
