#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/file/error_context.h"
#include "checkpoint/python/pickle_names.h"
#include "lockstep/checkpoint/errors.h"
#include "value_builder.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t kMostDimensions = 64;
constexpr std::size_t kMostStorageKey = 256;  // torch.save numbers storages

}  // namespace

[[noreturn]] void refuse_object(const std::string& what) {
  throw CheckpointError(ErrorCode::kUnsupported, what);
}

const PickleName& name_at(const PickleGraph& graph, PickleId id) {
  if (graph.at(id).kind == PickleKind::kForeign) refuse_object(graph.text(id));
  if (graph.at(id).kind != PickleKind::kName) damaged("a name is expected, found another value");
  return *graph.at(id).name;
}

std::int64_t count_at(const PickleGraph& graph, PickleId id) {
  const PickleValue& value = graph.at(id);
  if (value.kind != PickleKind::kInt || value.integer < 0) damaged("a size, stride or offset is no whole number");
  return value.integer;
}

const std::string& text_at(const PickleGraph& graph, PickleId id) {
  const PickleKind kind = graph.at(id).kind;
  if (kind != PickleKind::kText && kind != PickleKind::kBytes) damaged("text is expected, found another value");
  return graph.text(id);
}

StorageFields storage_fields(const PickleGraph& graph, PickleId id) {
  const std::vector<PickleId>& items = graph.items(id);
  if (items.size() != 5 && items.size() != 6) damaged(fmt::format("a storage has {} fields", items.size()));
  if (text_at(graph, items[0]) != "storage") damaged("an object of the file is no storage");
  if (text_at(graph, items[2]).size() > kMostStorageKey) damaged("a storage has an impossible name");
  if (items.size() == 6 && graph.at(items[5]).kind != PickleKind::kNone) {
    refuse_object("a tensor whose storage is a view of another, as PyTorch before 0.4 wrote it");
  }
  const PickleName& type = name_at(graph, items[1]);
  if (type.role != PickleRole::kStorage) damaged(fmt::format("{} is no type of a storage", type.name));
  StorageFields fields{text_at(graph, items[2]), std::string(type.dtype),
                       static_cast<std::uint64_t>(count_at(graph, items[4])), 0};
  const std::uint64_t size = type.dtype.empty() ? 1 : c10::elementSize(find_dtype(type.dtype)->dtype);
  if (__builtin_mul_overflow(fields.count, size, &fields.bytes)) damaged("a storage has an impossible size");
  return fields;
}

std::vector<std::int64_t> counts_at(const PickleGraph& graph, PickleId id) {
  if (graph.at(id).kind == PickleKind::kCall && graph.items(id).size() == 2 &&
      name_at(graph, graph.items(id)[0]).role == PickleRole::kSize) {
    id = graph.items(id)[1];
  }
  const PickleKind kind = graph.at(id).kind;
  if (kind != PickleKind::kTuple && kind != PickleKind::kList) damaged("a shape is no tuple");
  const std::vector<PickleId>& items = graph.items(id);
  if (items.size() > kMostDimensions) damaged(fmt::format("a tensor has {} dimensions", items.size()));
  std::vector<std::int64_t> numbers;
  numbers.reserve(items.size());
  for (const PickleId item : items) numbers.push_back(count_at(graph, item));
  return numbers;
}

void require_inside(const StorageFields& fields, std::size_t element, std::int64_t offset,
                    const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 46;
  if (sizes.size() != strides.size()) damaged("a tensor has not as many strides as dimensions");
  std::int64_t bytes = static_cast<std::int64_t>(element);
  std::int64_t last = offset;
  bool empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::int64_t step = 0;
    empty = empty || sizes[i] == 0;
    const std::int64_t size = std::max<std::int64_t>(sizes[i], 1);
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > kMostBytes ||
        __builtin_mul_overflow(size - 1, strides[i], &step) || __builtin_add_overflow(last, step, &last)) {
      damaged("a tensor has an impossible shape");
    }
  }
  std::int64_t end = 0;
  if (__builtin_add_overflow(last, empty ? 0 : 1, &end) ||
      __builtin_mul_overflow(end, static_cast<std::int64_t>(element), &end)) {
    damaged("a tensor has an impossible offset");
  }
  if (!empty && static_cast<std::uint64_t>(end) > fields.bytes) {
    damaged(fmt::format("a tensor ends at byte {} of its storage of {}", end, fields.bytes));
  }
}

bool for_each_storage(const PickleGraph& graph, const std::function<void(const StorageFields&)>& each) {
  bool all = true;
  for (PickleId id = 0; id < graph.values.size(); ++id) {
    if (graph.at(id).kind != PickleKind::kStorage) continue;
    const std::vector<PickleId>& items = graph.items(id);
    const bool known = items.size() < 2 || graph.at(items[1]).kind != PickleKind::kForeign;
    all = all && known;
    if (known) each(storage_fields(graph, id));
  }
  return all;
}

}  // namespace lockstep::checkpoint
