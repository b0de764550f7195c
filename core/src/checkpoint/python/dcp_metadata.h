// The file `.metadata` of Python's distributed checkpoints (torch.distributed.checkpoint, "DCP"): a pickle of the class
// Metadata, which says what there is, and in which file each part of it is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/file/file_bytes.h"
#include "pickle_graph.h"

namespace lockstep::checkpoint {

// Bytes of a file in the checkpoint's folder: a file of torch.save by itself.
struct DcpPlace {
  std::string_view file;
  std::uint64_t offset;
  std::uint64_t length;
};

// A box of a tensor, which one rank has written.
struct DcpChunk {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;
  DcpPlace place;
};

// Methods throw CheckpointError (kCorrupt, kUnsupported) without the path. Views are valid as long as the object.
class DcpMetadata {
 public:
  // A tensor or an object by its name, such as "model.fc.weight".
  struct Entry {
    std::string_view name;
    PickleId about;  // its storage metadata
    bool is_tensor;
    PickleId path = 0;  // a tuple of keys, when has_path
    bool has_path = false;
  };
  // A key of a dict, or an index of a list.
  using Step = std::variant<std::string_view, std::int64_t>;

  explicit DcpMetadata(const FileBytes& file);
  DcpMetadata(const DcpMetadata&) = delete;
  DcpMetadata& operator=(const DcpMetadata&) = delete;

  // In the order of the state dict.
  const std::vector<Entry>& entries() const { return entries_; }

  // Where the entry is in the state dict that was saved: ("model", "fc.weight").
  std::vector<Step> path(const Entry& entry) const;
  // Of a tensor: "float32", its shape, and its chunks.
  std::string_view dtype(const Entry& entry) const;
  std::vector<std::int64_t> sizes(const Entry& entry) const;
  std::vector<DcpChunk> chunks(const Entry& entry) const;
  // Of an object.
  DcpPlace place(const Entry& entry) const;

 private:
  // An object whose fields are a dict.
  class Record;

  void read_places(PickleId id);
  std::map<std::string_view, PickleId> read_paths(PickleId id) const;
  void read_entries(PickleId id, const std::map<std::string_view, PickleId>& paths);
  const std::vector<PickleId>& dict_items(PickleId id, std::string_view what) const;
  std::string_view text(PickleId id, std::string_view what) const;
  std::vector<std::int64_t> numbers(PickleId id, std::string_view what) const;
  DcpPlace place_at(PickleId storage_info) const;

  PickleGraph graph_;
  std::vector<Entry> entries_;
  // By name: each chunk's index and storage info. They are read when they are needed.
  std::map<std::string_view, std::vector<std::pair<PickleId, PickleId>>> places_;
};

}  // namespace lockstep::checkpoint
