#include "lockstep/checkpoint/distributed_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/printable.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_kind.h"
#include "checkpoint/python/dcp_metadata.h"
#include "checkpoint/python/pickle_names.h"
#include "checkpoint/state/file_values.h"
#include "torch_bytes.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

constexpr std::size_t kMostOpenFiles = 64;
constexpr std::size_t kShown = 100;

// The bytes of a tensor. Throws when there is no such tensor.
std::uint64_t bytes_of(const std::vector<std::int64_t>& sizes, torch::ScalarType dtype) {
  constexpr std::int64_t kMost = std::int64_t{1} << 46;
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (const std::int64_t size : sizes) {
    empty = empty || size == 0;
    // Counts 0 as 1: LibTorch calculates strides from the others, and these must not overflow.
    if (size > 0 && (__builtin_mul_overflow(bytes, size, &bytes) || bytes > kMost)) {
      damaged(fmt::format("the shape [{}] is impossible", fmt::join(sizes, ", ")));
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

// Where the chunk goes in the whole tensor.
torch::Tensor box_of(torch::Tensor whole, const DcpChunk& chunk) {
  for (std::size_t i = 0; i < chunk.sizes.size(); ++i) {
    whole = whole.narrow(static_cast<std::int64_t>(i), chunk.offsets[i], chunk.sizes[i]);
  }
  return whole;
}

void require_inside(const DcpChunk& chunk, const std::vector<std::int64_t>& sizes) {
  bool inside = chunk.offsets.size() == sizes.size() && chunk.sizes.size() == sizes.size();
  for (std::size_t i = 0; inside && i < sizes.size(); ++i) {
    inside = chunk.offsets[i] <= sizes[i] && chunk.sizes[i] <= sizes[i] - chunk.offsets[i];
  }
  if (inside) return;
  damaged(fmt::format("a chunk [{}] at [{}] leaves its tensor [{}]", fmt::join(chunk.sizes, ", "),
                      fmt::join(chunk.offsets, ", "), fmt::join(sizes, ", ")));
}

// Where a value is: ["list"][1]["lr"].
std::string place_of(const std::vector<DcpMetadata::Step>& path) {
  std::string place;
  for (const DcpMetadata::Step& step : path) {
    const auto* const index = std::get_if<std::int64_t>(&step);
    place += index != nullptr ? fmt::format("[{}]", *index) : key_place(std::get<std::string_view>(step));
  }
  return place;
}

// A dict that is built from its leaves, each with the path to it, as Python's unflatten_state_dict() does.
class NestedValue {
 public:
  // A key of a dict, or an index of a list.
  using Step = std::variant<std::string_view, std::int64_t>;

  NestedValue() {
    nodes_.emplace_back();
    nodes_[0].is_leaf = false;
  }

  // Throws CheckpointError (kCorrupt) when the paths contradict one another, or would make absurdly long lists.
  void add(const std::vector<Step>& path, c10::IValue value) {
    std::size_t node = 0;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const std::size_t known = nodes_.size();
      node = part_of(node, path[i]);
      const bool is_new = nodes_.size() > known;
      const bool is_last = i + 1 == path.size();
      if (!is_new && (is_last || nodes_[node].is_leaf)) {
        damaged("two of its values have the same place, or one is inside of another");
      }
      if (!is_new || is_last) continue;
      nodes_[node].is_leaf = false;
      nodes_[node].is_list = std::holds_alternative<std::int64_t>(path[i + 1]);
    }
    nodes_[node].value = std::move(value);
  }

  // The dict. Throws CheckpointError (kCorrupt) for keys that were chosen to take all memory.
  c10::IValue build() { return build(nodes_[0]); }

 private:
  struct Node {
    bool is_leaf = true;
    bool is_list = false;
    c10::IValue value;                                // of a leaf
    std::vector<std::pair<Step, std::size_t>> parts;  // in the order in which they came: key, place in nodes_
  };

  // Places of lists that no value has are None, as in Python.
  static constexpr std::int64_t kMostListPlaces = std::int64_t{1} << 24;

  static c10::IValue key_of(const Step& step) {
    if (const auto* index = std::get_if<std::int64_t>(&step)) return *index;
    return std::string(std::get<std::string_view>(step));
  }

  // The place of a part of a container; made when it is new.
  std::size_t part_of(std::size_t node, const Step& step) {
    if (nodes_[node].is_list && !std::holds_alternative<std::int64_t>(step)) damaged("a list has a key that is text");
    const auto [found, is_new] = index_.try_emplace({node, step}, nodes_.size());
    if (is_new) {
      nodes_[node].parts.emplace_back(step, nodes_.size());
      nodes_.emplace_back();
    }
    return found->second;
  }

  // The depth is at most that of the longest path.
  c10::IValue build(const Node& node) {
    if (node.is_leaf) return node.value;
    if (node.is_list) return build_list(node);
    std::vector<std::pair<c10::IValue, c10::IValue>> entries;
    entries.reserve(node.parts.size());
    for (const auto& [step, part] : node.parts) entries.emplace_back(key_of(step), build(nodes_[part]));
    return growth_.make(entries);
  }

  c10::IValue build_list(const Node& node) {
    std::int64_t places = 0;
    for (const auto& [step, part] : node.parts) {
      const std::int64_t index = std::get<std::int64_t>(step);
      if (index < 0 || index >= kMostListPlaces) damaged(fmt::format("a list has the index {}", index));
      places = std::max(places, index + 1);
    }
    list_places_ += places;
    if (list_places_ > kMostListPlaces) damaged(fmt::format("its lists have over {} places", kMostListPlaces));
    std::vector<c10::IValue> values(static_cast<std::size_t>(places));
    for (const auto& [step, part] : node.parts) {
      values[static_cast<std::size_t>(std::get<std::int64_t>(step))] = build(nodes_[part]);
    }
    c10::impl::GenericList list(c10::AnyType::get());
    for (c10::IValue& value : values) list.push_back(std::move(value));
    return list;
  }

  std::vector<Node> nodes_;                                    // the first is the dict
  std::map<std::pair<std::size_t, Step>, std::size_t> index_;  // of parts
  std::int64_t list_places_ = 0;                               // of all lists together
  DictGrowth growth_;                                          // of all dicts
};

class FolderReader {
 public:
  FolderReader(fs::path folder, torch::Device device, TypeChanges* changes)
      : folder_(std::move(folder)), device_(device), changes_(changes) {}

  c10::IValue read() {
    const DcpMetadata metadata(open_metadata());
    NestedValue nested;
    for (const DcpMetadata::Entry& entry : metadata.entries()) {
      in_context(fmt::format("\"{}\"", printable(entry.name.substr(0, kShown))), [&] {
        const std::vector<DcpMetadata::Step> path = metadata.path(entry);
        if (changes_ != nullptr) changes_->set_base(place_of(path));
        nested.add(path,
                   entry.is_tensor ? c10::IValue(tensor(metadata, entry).to(device_)) : object(metadata.place(entry)));
      });
    }
    return nested.build();
  }

 private:
  [[noreturn]] static void refuse_safetensors() {
    throw CheckpointError(ErrorCode::kUnsupported,
                          "its tensors are in the safetensors format: save it with SerializationFormat.TORCH_SAVE, or "
                          "read such a file with read_state_dict()");
  }

  // FileSystemWriter(serialization_format=SerializationFormat.SAFETENSORS) names its files as it always does.
  void require_torch_save(const DcpPlace& place) {
    bytes_at(place);
    const FileBytes& file = open_.at(std::string(place.file));
    FileHead head{};
    if (file.size() - place.offset < head.size()) return;
    file.read(place.offset, head.data(), head.size());
    if (begins_tensor_file(head)) refuse_safetensors();
  }

  FileBytes open_metadata() const {
    const fs::path path = folder_ / ".metadata";
    if (fs::exists(path)) return FileBytes(path);
    if (fs::exists(folder_ / "__0.metadata")) {
      throw CheckpointError(ErrorCode::kUnsupported,
                            "every rank has saved its own checkpoint there (use_collectives=False)");
    }
    std::error_code ignored;
    for (fs::directory_iterator entry(folder_, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
      if (entry->path().extension() == ".safetensors") refuse_safetensors();
    }
    return FileBytes(path);  // the error
  }

  torch::Tensor tensor(const DcpMetadata& metadata, const DcpMetadata::Entry& entry) {
    const torch::ScalarType dtype = find_dtype(metadata.dtype(entry))->dtype;
    const std::vector<std::int64_t> sizes = metadata.sizes(entry);
    const std::vector<DcpChunk> chunks = metadata.chunks(entry);
    const std::uint64_t bytes = bytes_of(sizes, dtype);
    std::uint64_t held = 0;
    for (const DcpChunk& chunk : chunks) {
      require_inside(chunk, sizes);
      require_held(chunk.place);
      const std::uint64_t of_chunk = bytes_of(chunk.sizes, dtype);
      if (of_chunk > chunk.place.length) damaged("a chunk has fewer bytes than its shape needs");
      held += of_chunk;
      if (held > bytes) damaged("its chunks overlap");
    }
    if (held < bytes) damaged(fmt::format("its chunks have {} of {} bytes", held, bytes));
    // Nothing was allocated before, because only now it is known that the files hold as much.
    if (chunks.size() == 1 && chunks[0].sizes == sizes) return chunk_tensor(chunks[0], dtype).contiguous();
    return assembled(chunks, sizes, dtype);
  }

  torch::Tensor assembled(const std::vector<DcpChunk>& chunks, const std::vector<std::int64_t>& sizes,
                          torch::ScalarType dtype) {
    const torch::Tensor whole = torch::empty(sizes, dtype);
    const torch::Tensor filled = torch::zeros(sizes, torch::kBool);
    for (const DcpChunk& chunk : chunks) {
      if (bytes_of(chunk.sizes, dtype) == 0) continue;
      box_of(whole, chunk).copy_(chunk_tensor(chunk, dtype));
      box_of(filled, chunk).fill_(true);
    }
    // The chunks have as many elements as the tensor: when two of them have the same element, another one is missing.
    if (!filled.all().item<bool>()) damaged("its chunks overlap");
    return whole;
  }

  torch::Tensor chunk_tensor(const DcpChunk& chunk, torch::ScalarType dtype) {
    require_torch_save(chunk.place);
    const c10::IValue value = read_torch_bytes(bytes_at(chunk.place), torch::kCPU, allowance_);
    if (const std::string* what = foreign_text(value)) {
      throw CheckpointError(ErrorCode::kUnsupported, fmt::format("a chunk is {}{}", *what, kForeignRefused));
    }
    if (!value.isTensor()) damaged("a chunk is no tensor");
    const torch::Tensor& tensor = value.toTensor();
    if (tensor.sizes() != chunk.sizes || tensor.scalar_type() != dtype) {
      damaged(fmt::format("a chunk is {} [{}], expected {} [{}]", c10::toString(tensor.scalar_type()),
                          fmt::join(tensor.sizes(), ", "), c10::toString(dtype), fmt::join(chunk.sizes, ", ")));
    }
    return tensor.detach();
  }

  c10::IValue object(const DcpPlace& place) {
    require_held(place);
    return read_torch_bytes(bytes_at(place), device_, allowance_, changes_);
  }

  // Throws when the file does not have these bytes, or when all places together have more bytes than their files: then
  // some bytes are used twice.
  void require_held(const DcpPlace& place) {
    bytes_at(place);
    const std::string name(place.file);
    if (seen_.insert(name).second) available_ += open_.at(name).size();
    used_ += place.length;
    if (used_ > available_) damaged("some bytes of its files are used twice");
  }

  FileBytes bytes_at(const DcpPlace& place) {
    const std::string name(place.file);
    const bool plain = !name.empty() && name != "." && name != ".." && name.find_first_of("/\0"s) == std::string::npos;
    if (!plain) damaged(fmt::format("it names the file \"{}\"", printable(place.file.substr(0, kShown))));
    if (open_.size() == kMostOpenFiles && !open_.contains(name)) open_.clear();
    auto file = open_.find(name);
    if (file == open_.end()) file = open_.emplace(name, FileBytes(folder_ / name)).first;
    return in_context(name, [&] { return file->second.part(place.offset, place.length); });
  }

  fs::path folder_;
  torch::Device device_;
  TypeChanges* changes_;  // may be null
  ReadAllowance allowance_;
  std::map<std::string, FileBytes> open_;
  std::set<std::string> seen_;
  std::uint64_t available_ = 0;
  std::uint64_t used_ = 0;
};

}  // namespace

c10::IValue read_distributed_checkpoint(const fs::path& folder, torch::Device map_location) {
  return read_distributed_checkpoint(folder, map_location, nullptr);
}

c10::IValue read_distributed_checkpoint(const fs::path& folder, torch::Device map_location, TypeChanges* changes) {
  return in_context(folder.native(), [&] { return FolderReader(folder, map_location, changes).read(); });
}

}  // namespace lockstep::checkpoint
