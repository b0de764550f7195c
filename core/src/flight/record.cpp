#include "flight/record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "base/printable.h"
#include "base/regular_file.h"

namespace lockstep::flight {
namespace {

constexpr int kMostRanks = 1 << 16;  // of a group, so that a file cannot ask for much memory

template <std::size_t kSize>
std::string text_of(const std::array<char, kSize>& text) {
  const auto end = std::find(text.begin(), text.end(), '\0');
  return printable(valid_utf8(std::string_view(text.data(), static_cast<std::size_t>(end - text.begin()))));
}

// Whether both copies hold the same call, so that neither was taken while it was written.
bool is_one_call(const Entry& a, const Entry& b) {
  return a.serial == b.serial && a.called == b.called && a.number == b.number && a.input == b.input &&
         a.output == b.output && a.group == b.group && a.peer == b.peer && a.site == b.site && a.label == b.label &&
         a.op == b.op && a.type == b.type;
}

GroupInfo read_group(const Group& from) {
  GroupInfo group;
  group.name = text_of(from.name);
  group.size = std::clamp(from.size, 1, kMostRanks);
  group.rank = std::clamp(from.rank, 0, group.size - 1);
  group.left = from.left != 0;
  group.identity = from.identity;
  const auto known = from.stride != 0 ? group.size : std::min<int>(group.size, Group::kRanks);
  for (int i = 0; i < known; ++i) {
    const std::int64_t rank = from.stride != 0 ? from.first + std::int64_t{from.stride} * i : from.ranks[i];
    group.ranks.push_back(static_cast<int>(std::clamp<std::int64_t>(rank, 0, kMostRanks)));
  }
  return group;
}

Operation read_entry(const Entry& from) {
  Operation operation;
  operation.serial = from.serial;
  operation.called = from.called;
  const std::uint64_t ended = from.ended;
  operation.outcome = static_cast<Outcome>(ended & 3);
  operation.ended = operation.under_way() ? 0 : std::max(ended & ~std::uint64_t{3}, operation.called);
  const std::uint64_t waited = from.waited;
  operation.waited = waited == 0 ? 0 : operation.called + (waited - 1) * 1000;
  operation.number = from.number;
  operation.input = from.input;
  operation.output = from.output;
  operation.peer = from.peer;
  operation.op = static_cast<Op>(from.op.load());
  operation.type = from.type;
  return operation;
}

// "src/train.cpp:41 (gradient of fc1.weight)", or one of both.
std::string place_of(const Ring& ring, const Entry& entry) {
  const auto text = [&](std::uint16_t number) {
    return number == 0 || number > kTexts ? std::string() : text_of(ring.texts[number - 1U]);
  };
  const std::string site = text(entry.site);
  const std::string label = text(entry.label);
  return label.empty() ? site : fmt::format("{}{}({})", site, site.empty() ? "" : " ", label);
}

// As long as a rank writes, two copies differ in the entries that it writes meanwhile.
RankRecord to_record(const Ring& first, const Ring& second) {
  RankRecord record;
  record.rank = std::clamp<int>(first.rank, 0, kMostRanks);
  record.pid = first.owner;
  record.attempt = first.attempt;
  record.host = text_of(first.host);
  record.job = text_of(first.job);
  record.real = first.real - first.steady;
  record.is_dump = first.dumped != 0;
  record.now = record.is_dump ? first.dumped
                              : static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  record.process = text_of(first.process);
  record.ended = record.process.starts_with(kEnded);
  record.total = first.operations;
  record.input = first.input;
  record.steps_done = first.steps_done;
  for (std::size_t i = 0; i < kSteps; ++i) {
    const StepEnd step{second.steps[i].ended, second.steps[i].input};
    if (step.ended != 0 && step.ended == first.steps[i].ended && step.input == first.steps[i].input) {
      record.steps.push_back(step);
    }
  }
  std::sort(record.steps.begin(), record.steps.end(),
            [](const StepEnd& a, const StepEnd& b) { return a.ended < b.ended; });
  std::map<std::uint32_t, const Group*> groups;
  for (std::size_t i = 0; i < kGroups; ++i) {
    const Group& group = first.groups[i];
    const bool stable = std::memcmp(&group, &second.groups[i], sizeof group) == 0;
    if (stable && group.id != 0) groups.emplace(group.id, &group);
  }
  std::map<std::uint16_t, int> index;
  for (const auto& [id, group] : groups) {
    index[static_cast<std::uint16_t>(id)] = static_cast<int>(record.groups.size());
    record.groups.push_back(read_group(*group));
  }
  for (std::size_t i = 0; i < kEntries; ++i) {
    const Entry& entry = second.entries[i];
    if (entry.serial == 0 || entry.serial == Entry::kWriting || entry.serial % kEntries != i ||
        !is_one_call(first.entries[i], entry))
      continue;
    Operation operation = read_entry(entry);
    const auto group = index.find(entry.group);
    if (group != index.end()) operation.group = group->second;
    operation.place = place_of(first, entry);
    record.operations.push_back(std::move(operation));
  }
  std::sort(record.operations.begin(), record.operations.end(),
            [](const Operation& a, const Operation& b) { return a.serial < b.serial; });
  return record;
}

constexpr std::array kTypes{"uint8",     "int8",      "int16",      "int32", "int64", "float16", "float32", "float64",
                            "complex32", "complex64", "complex128", "bool",  "qint8", "quint8",  "qint32",  "bfloat16"};

}  // namespace

Result<RankRecord> read_record(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::open(path));
  if (file.size() == 0) return Status(ErrorCode::kNotFound, fmt::format("{}: nothing is recorded there yet", path));
  if (file.size() != sizeof(Ring)) {
    return Status(ErrorCode::kCorrupt, fmt::format("{}: expected a recorder of {} bytes, found {}: it was cut off, or "
                                                   "is another kind of file",
                                                   path, sizeof(Ring), file.size()));
  }
  const auto first = std::make_unique<Ring>();
  const auto second = std::make_unique<Ring>();
  for (Ring* const copy : {first.get(), second.get()}) {
    if (pread(file.fd(), static_cast<void*>(copy), sizeof(Ring), 0) != static_cast<ssize_t>(sizeof(Ring))) {
      return Status::from_errno(fmt::format("cannot read {}", path), errno);
    }
  }
  if (first->magic == 0) return Status(ErrorCode::kNotFound, fmt::format("{}: nothing is recorded there yet", path));
  if (first->magic != kMagic || first->version != kVersion) {
    return Status(ErrorCode::kCorrupt, fmt::format("{}: no recorder of this version of Lockstep", path));
  }
  RankRecord record = to_record(*first, *second);
  record.source = path;
  return record;
}

Result<std::vector<std::string>> dumps_in(const std::string& folder) {
  constexpr std::size_t kMost = 1 << 16;
  std::vector<std::string> found;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".flight" && found.size() < kMost) found.push_back(entry->path().string());
  }
  std::sort(found.begin(), found.end());
  if (!found.empty()) return found;
  return Status(ErrorCode::kNotFound, fmt::format("no dump (*.flight) is in '{}'", printable(folder)));
}

std::string_view name_of(Op op) {
  switch (op) {
    case Op::kBroadcast: return "broadcast";
    case Op::kAllReduce: return "all_reduce";
    case Op::kAllReduceCoalesced: return "all_reduce_coalesced";
    case Op::kReduce: return "reduce";
    case Op::kAllGather: return "all_gather";
    case Op::kAllGatherIntoTensor: return "all_gather_into_tensor";
    case Op::kAllGatherCoalesced: return "all_gather_coalesced";
    case Op::kGather: return "gather";
    case Op::kScatter: return "scatter";
    case Op::kReduceScatter: return "reduce_scatter";
    case Op::kAllToAllSingle: return "all_to_all_single";
    case Op::kAllToAll: return "all_to_all";
    case Op::kSend: return "send";
    case Op::kReceive:
    case Op::kReceiveFromAny: return "recv";
    case Op::kBarrier: return "barrier";
    case Op::kReduceScatterTensor: return "reduce_scatter_tensor";
    case Op::kAllGatherIntoTensorCoalesced: return "all_gather_into_tensor_coalesced";
    case Op::kReduceScatterTensorCoalesced: return "reduce_scatter_tensor_coalesced";
    case Op::kMonitoredBarrier: return "monitored_barrier";
    case Op::kOther: break;
  }
  return "a refused call";
}

std::string type_name(std::uint8_t type) {
  return type < kTypes.size() ? kTypes[type] : fmt::format("type {}", type);
}

std::size_t type_bytes(std::uint8_t type) {
  constexpr std::array<std::size_t, kTypes.size()> kBytes{1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2};
  return type < kBytes.size() ? kBytes[type] : 0;
}

std::vector<SharedGroup> shared_groups(std::span<const RankRecord> records) {
  using Name = std::pair<std::string, std::vector<int>>;  // and members
  using Key = std::tuple<Name, std::uint64_t, std::size_t>;
  std::map<Key, SharedGroup> found;
  std::map<std::pair<Name, std::uint64_t>, std::size_t> known;  // turns, by name and identity
  const auto each_group = [&](const auto& visit) {
    for (std::size_t i = 0; i < records.size(); ++i) {
      std::map<Name, std::size_t> turns;
      const std::vector<GroupInfo>& groups = records[i].groups;
      for (std::size_t k = groups.size(); k-- > 0;) {
        const Name name{groups[k].name, groups[k].ranks};
        visit(name, turns[name]++, groups[k].identity, SharedGroup::Member{i, static_cast<int>(k)});
      }
    }
  };
  each_group([&](const Name& name, std::size_t turn, std::uint64_t identity, const SharedGroup::Member&) {
    if (identity == 0) return;
    std::size_t& last = known[{name, identity}];
    last = std::max(last, turn);
  });
  std::map<std::pair<Name, std::size_t>, std::uint64_t> identities;  // by name and turn
  for (const auto& [group, turn] : known) identities.try_emplace({group.first, turn}, group.second);
  each_group([&](const Name& name, std::size_t turn, std::uint64_t identity, const SharedGroup::Member& member) {
    if (const auto alike = identities.find({name, turn}); identity == 0 && alike != identities.end()) {
      const std::vector<SharedGroup::Member>& members = found[{name, alike->second, 0}].members;
      if (members.empty() || members.back().record != member.record) identity = alike->second;
    }
    SharedGroup& shared = found[{name, identity, identity == 0 ? turn : 0}];
    shared.name = name.first;
    shared.turn = std::max(shared.turn, turn);
    shared.ranks = name.second;
    shared.members.push_back(member);
  });
  std::vector<SharedGroup> all;
  all.reserve(found.size());
  for (auto& [key, group] : found) all.push_back(std::move(group));
  std::stable_sort(all.begin(), all.end(), [](const SharedGroup& a, const SharedGroup& b) {
    return std::tie(a.name, a.ranks, a.turn) < std::tie(b.name, b.ranks, b.turn);
  });
  // A group that one rank has not made yet leaves two groups with one turn.
  for (std::size_t i = 1; i < all.size(); ++i) {
    const bool is_alike = all[i].name == all[i - 1].name && all[i].ranks == all[i - 1].ranks;
    if (is_alike) all[i].turn = std::max(all[i].turn, all[i - 1].turn + 1);
  }
  return all;
}

}  // namespace lockstep::flight
