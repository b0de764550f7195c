#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_kind.h"
#include "checkpoint/python/pickle_reader.h"
#include "checkpoint/python/zip_file.h"
#include "checkpoint/state/file_values.h"
#include "lockstep/checkpoint/torch_file.h"
#include "torch_bytes.h"
#include "value_builder.h"

namespace lockstep::checkpoint {
namespace {

// Where the bytes of a storage are.
struct Record {
  ZipEntry entry;
  std::uint64_t claimed;  // bytes that the pickle says
};
using Records = std::map<std::string, Record>;

class StorageReader {
 public:
  StorageReader(const FileBytes& file, torch::Device device) : file_(file), device_(device) {}

  // Reads the bytes of all records. Several threads read, because comparing the CRCs takes longer than reading.
  void read(const Records& records) {
    std::vector<const Record*> order;
    std::vector<torch::Tensor> bytes;
    for (const auto& [key, record] : records) {
      order.push_back(&record);
      bytes.push_back(torch::empty({static_cast<std::int64_t>(record.entry.size)}, torch::kByte));
    }
    at::parallel_for(0, static_cast<std::int64_t>(order.size()), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::size_t at = static_cast<std::size_t>(i);
        read_zip_entry(file_, order[at]->entry, bytes[at].mutable_data_ptr());
      }
    });
    std::size_t next = 0;
    for (const auto& [key, record] : records) storages_[key] = bytes[next++].to(device_).storage();
  }

  c10::Storage find(const StorageFields& fields) const { return storages_.at(fields.key); }

 private:
  const FileBytes& file_;
  torch::Device device_;
  std::map<std::string, c10::Storage> storages_;
};

c10::IValue build(const FileBytes& file, const PickleGraph& graph, const Records& records, torch::Device device,
                  TypeChanges* changes) {
  StorageReader storages(file, device);
  storages.read(records);
  return build_value(
      graph, [&](const StorageFields& fields) { return storages.find(fields); }, changes);
}

// Fails when the pickle speaks of a storage in two ways.
void note(Records& records, const StorageFields& fields, const ZipEntry& entry) {
  const auto [found, is_new] = records.try_emplace(fields.key, Record{entry, fields.bytes});
  if (found->second.claimed != fields.bytes) {
    damaged(fmt::format("storage {:.40} has {} bytes at one place and {} at another", fields.key, found->second.claimed,
                        fields.bytes));
  }
}

// The zip format: ROOT/data.pkl has the values, ROOT/data/KEY the bytes of a storage.
class ZipFile {
 public:
  ZipFile(const FileBytes& file, ReadAllowance& allowance) : file_(file), allowance_(allowance) {
    for (ZipEntry& entry : read_zip_directory(file, allowance)) {
      if (root_.empty()) root_ = entry.name.substr(0, entry.name.find('/'));
      entries_.emplace(entry.name, std::move(entry));
    }
    if (find("constants.pkl") != nullptr) {
      throw CheckpointError(
          ErrorCode::kUnsupported,
          "it is TorchScript (torch.jit.save, or torch::save of a module): torch::load or "
          "torch::jit::load reads it, and torch.save(model.state_dict(), path) writes what is read here");
    }
    if (find("data.pkl") == nullptr) damaged("the zip file has no data.pkl, so torch.save has not written it");
    if (const ZipEntry* order = find("byteorder"); order != nullptr && text(*order) != "little") {
      throw CheckpointError(ErrorCode::kUnsupported, "it was written on a big-endian machine");
    }
  }

  c10::IValue read(torch::Device device, TypeChanges* changes) const {
    const FileBytes pickle(text(*find("data.pkl")));
    PickleInput input(pickle, 0, pickle.size());
    const PickleGraph graph = read_pickle(input, allowance_);
    Records records;
    for_each_storage(graph, [&](const StorageFields& fields) { note(records, fields, storage(fields)); });
    return build(file_, graph, records, device, changes);
  }

 private:
  const ZipEntry* find(const std::string& name) const {
    const auto found = entries_.find(root_ + "/" + name);
    return found == entries_.end() ? nullptr : &found->second;
  }

  std::string text(const ZipEntry& entry) const {
    std::string bytes(entry.size, '\0');
    read_zip_entry(file_, entry, bytes.data());
    return bytes;
  }

  ZipEntry storage(const StorageFields& fields) const {
    const ZipEntry* entry = find("data/" + fields.key);
    if (entry == nullptr && fields.bytes == 0) return {"", 0, 0, 0};
    if (entry == nullptr) damaged(fmt::format("storage {:.40} is missing", fields.key));
    if (entry->size != fields.bytes) {
      damaged(fmt::format("storage {:.40} has {} bytes, its tensors expect {}", fields.key, entry->size, fields.bytes));
    }
    return *entry;
  }

  const FileBytes& file_;
  ReadAllowance& allowance_;
  std::string root_;
  std::map<std::string, ZipEntry> entries_;
};

// The older format: pickles of a magic number, a version, facts of the machine, the values and a list of keys; then
// each storage's length and bytes.
constexpr std::string_view kLegacyMagic = "\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.";
constexpr std::size_t kProtocolBytes = 2;
constexpr std::size_t kFrameBytes = 9;  // of protocols 4 and 5, before the magic number
constexpr std::size_t kHeadBytes = kProtocolBytes + kFrameBytes + kLegacyMagic.size();

// Where the pickle of the magic number ends; 0 when there is none.
std::size_t end_of_legacy_magic(std::string_view head) {
  const std::size_t at = head.substr(0, 3).ends_with('\x95') ? kProtocolBytes + kFrameBytes : kProtocolBytes;
  return head.size() >= at && head.substr(at).starts_with(kLegacyMagic) ? at + kLegacyMagic.size() : 0;
}

const PickleValue* find_key(const PickleGraph& graph, std::string_view key) {
  if (graph.at(graph.root).kind != PickleKind::kDict) return nullptr;
  const std::vector<PickleId>& items = graph.items(graph.root);
  for (std::size_t i = 0; i < items.size(); i += 2) {
    if (graph.at(items[i]).kind == PickleKind::kText && graph.text(items[i]) == key) return &graph.at(items[i + 1]);
  }
  return nullptr;
}

c10::IValue read_legacy(const FileBytes& file, std::size_t begin, torch::Device device, ReadAllowance& allowance,
                        TypeChanges* changes) {
  constexpr std::int64_t kVersion = 1001;
  PickleInput input(file, begin, file.size());
  const PickleGraph version = read_pickle(input, allowance);
  if (version.at(version.root).kind != PickleKind::kInt || version.at(version.root).integer != kVersion) {
    damaged(fmt::format("the format's version is not {}", kVersion));
  }
  const PickleGraph machine = read_pickle(input, allowance);
  if (const PickleValue* little = find_key(machine, "little_endian"); little != nullptr && little->integer == 0) {
    throw CheckpointError(ErrorCode::kUnsupported, "it was written on a big-endian machine");
  }
  const PickleGraph graph = read_pickle(input, allowance);
  const PickleGraph keys = read_pickle(input, allowance);
  if (keys.at(keys.root).kind != PickleKind::kList) damaged("it has no list of storages");

  std::map<std::string, StorageFields> wanted;
  if (!for_each_storage(graph, [&](const StorageFields& fields) { wanted.try_emplace(fields.key, fields); })) {
    throw CheckpointError(
        ErrorCode::kUnsupported,
        "it has storages of a type that is not known here, so it cannot be told where the others are: "
        "load it in Python, and save it in the zip format");
  }
  std::map<std::string, ZipEntry> found;
  std::uint64_t at = input.position();
  for (const PickleId id : keys.items(keys.root)) {
    const auto fields = keys.at(id).kind == PickleKind::kText ? wanted.find(keys.text(id)) : wanted.end();
    if (fields == wanted.end()) damaged("its list has a storage that no tensor uses");
    std::uint64_t count = 0;
    file.read(at, &count, sizeof(count));
    at += sizeof(count);
    const std::uint64_t bytes = fields->second.bytes;
    if (count != fields->second.count || bytes > file.size() - at) {
      damaged(fmt::format("storage {:.40} at byte {} has {} elements, expected {} in the {} bytes that are left",
                          fields->first, at, count, fields->second.count, file.size() - at));
    }
    if (!found.try_emplace(fields->first, ZipEntry{fields->first, at, bytes, 0, bytes}).second) {
      damaged("its list has a storage twice");
    }
    at += bytes;
  }
  Records records;
  for_each_storage(graph, [&](const StorageFields& fields) {
    const auto entry = found.find(fields.key);
    if (entry == found.end()) damaged(fmt::format("storage {:.40} is missing", fields.key));
    note(records, fields, entry->second);
  });
  return build(file, graph, records, device, changes);
}

c10::IValue read_bytes(const FileBytes& file, torch::Device device, ReadAllowance& allowance, TypeChanges* changes) {
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), kHeadBytes)), '\0');
  file.read(0, head.data(), head.size());
  if (head.starts_with("PK")) return ZipFile(file, allowance).read(device, changes);
  if (const std::size_t begin = end_of_legacy_magic(head); begin != 0)
    return read_legacy(file, begin, device, allowance, changes);
  if (head.starts_with('\x80')) {
    throw CheckpointError(ErrorCode::kUnsupported, "it is a pickle, but torch.save has not written it");
  }
  std::string longer(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), kShownHead)), '\0');
  file.read(0, longer.data(), longer.size());
  if (const std::string other = other_file(longer); !other.empty()) throw CheckpointError(ErrorCode::kCorrupt, other);
  throw CheckpointError(ErrorCode::kCorrupt, "it is no file of torch.save (read_tensor_file() reads safetensors)");
}

}  // namespace

c10::IValue read_torch_file(const std::filesystem::path& path, torch::Device map_location) {
  ReadAllowance allowance;
  return read_torch_file(path, map_location, allowance);
}

c10::IValue read_torch_file(const std::filesystem::path& path, torch::Device map_location, ReadAllowance& allowance,
                            TypeChanges* changes) {
  const FileBytes file(path);
  return in_context(path.native(), [&] {
    c10::IValue value = read_bytes(file, map_location, allowance, changes);
    if (const std::string* what = foreign_text(value)) {
      throw CheckpointError(ErrorCode::kUnsupported, fmt::format("it is {}{}", *what, kForeignRefused));
    }
    return value;
  });
}

}  // namespace lockstep::checkpoint
