#include "flight/export.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "flight/report.h"
#include "lockstep/base/atomic_file.h"

namespace lockstep::flight {
namespace {

using nlohmann::json;

// A pickle of protocol 2 with None, bool, int, str, list and dict, which is all that the analyser needs.
class Pickle {
 public:
  std::string make(const json& value) {
    bytes_ = "\x80\x02";
    put(value);
    bytes_ += '.';
    return std::move(bytes_);
  }

 private:
  void put(const json& value) {
    switch (value.type()) {
      case json::value_t::boolean: bytes_ += value.get<bool>() ? '\x88' : '\x89'; break;
      case json::value_t::number_integer:
      case json::value_t::number_unsigned: put_number(value.get<std::int64_t>()); break;
      case json::value_t::string: put_text(value.get_ref<const std::string&>()); break;
      case json::value_t::array:
        bytes_ += "](";
        for (const json& item : value) put(item);
        bytes_ += 'e';
        break;
      case json::value_t::object:
        bytes_ += "}(";
        for (const auto& [key, item] : value.items()) {
          put_text(key);
          put(item);
        }
        bytes_ += 'u';
        break;
      default: bytes_ += 'N';
    }
  }
  void put_number(std::int64_t number) {
    bytes_ += "\x8a\x08";
    for (int byte = 0; byte < 8; ++byte) bytes_ += static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * byte));
  }
  void put_text(const std::string& text) {
    bytes_ += 'X';
    for (int byte = 0; byte < 4; ++byte) bytes_ += static_cast<char>(text.size() >> (8 * byte));
    bytes_ += text;
  }

  std::string bytes_;
};

std::string pytorch_name(Op op) {
  switch (op) {
    case Op::kAllReduceCoalesced: return "allreduce_coalesced";
    case Op::kAllGatherIntoTensor: return "_all_gather_base";
    case Op::kAllGatherCoalesced: return "allgather_coalesced";
    case Op::kReduceScatterTensor: return "_reduce_scatter_base";
    case Op::kMonitoredBarrier: return "barrier";
    default: return std::string(name_of(op));
  }
}

// As c10 names its scalar types.
std::string pytorch_type(std::uint8_t type) {
  constexpr std::array kNames{"Byte",  "Char",   "Short",       "Int",          "Long",          "Half",
                              "Float", "Double", "ComplexHalf", "ComplexFloat", "ComplexDouble", "Bool",
                              "QInt8", "QUInt8", "QInt32",      "BFloat16"};
  return type < kNames.size() ? kNames[type] : "Undefined";
}

const char* pytorch_state(const Operation& operation) {
  if (operation.outcome == Outcome::kDone) return "completed";
  return operation.outcome == Outcome::kHandedOver ? "scheduled" : "started";
}

// Of operations whose input and output are alike the analyser expects both sizes on every rank.
std::pair<std::uint64_t, std::uint64_t> sizes_of(const Operation& operation) {
  switch (operation.op) {
    case Op::kAllReduce:
    case Op::kAllReduceCoalesced:
    case Op::kReduce:
    case Op::kBroadcast: {
      const std::uint64_t most = std::max(operation.input, operation.output);
      return {most, most};
    }
    default: return {operation.input, operation.output};
  }
}

json entry_of(const RankRecord& record, const Operation& operation, const std::string& group, std::size_t index) {
  const GroupInfo& info = record.groups[static_cast<std::size_t>(operation.group)];
  const auto [input, output] = sizes_of(operation);
  const json type = json::array({pytorch_type(operation.type)});
  const bool done = operation.outcome == Outcome::kDone;
  json frames = json::array();
  // Without the label, which may hold colons.
  const std::string site = operation.place.substr(0, operation.place.find(" ("));
  if (!site.empty()) {
    const auto colon = site.rfind(':');
    const std::string line = colon == std::string::npos ? "0" : site.substr(colon + 1);
    frames.push_back({{"name", "caller"}, {"filename", site.substr(0, colon)}, {"line", line}});
  }
  return {{"record_id", index},
          {"pg_id", operation.group},
          {"process_group", {group, info.name}},
          {"collective_seq_id", operation.number},
          {"p2p_seq_id", 0},
          {"op_id", operation.number},
          {"is_p2p", false},
          // The name of the library must be one that the analyser knows.
          {"profiling_name", fmt::format("c10d:{}", pytorch_name(operation.op))},
          {"input_sizes", {{input}}},
          {"output_sizes", {{output}}},
          {"input_dtypes", type},
          {"output_dtypes", type},
          {"time_created_ns", operation.called + record.real},
          {"time_discovered_started_ns", operation.called + record.real},
          {"time_discovered_completed_ns", done ? json(operation.ended + record.real) : json()},
          {"state", pytorch_state(operation)},
          {"retired", done},
          {"timeout_ms", 0},
          {"frames", std::move(frames)}};
}

struct Known {
  std::string name;         // the same on all ranks
  std::uint64_t first = 0;  // collectives before it are not known on all ranks
};

// By record and by group.
std::vector<std::map<int, Known>> known_groups(std::span<const RankRecord> records) {
  std::vector<std::map<int, Known>> known(records.size());
  for (const SharedGroup& group : shared_groups(records)) {
    std::uint64_t first = 0;
    for (const SharedGroup::Member& member : group.members) {
      for (const Operation& operation : records[member.record].operations) {
        if (operation.group != member.group || is_message(operation.op)) continue;
        // A recorder that has not wrapped around has all.
        if (records[member.record].total > kEntries) first = std::max(first, operation.number);
        break;
      }
    }
    const std::string name = group.turn == 0 ? group.name : fmt::format("{}~{}", group.name, group.turn);
    for (const SharedGroup::Member& member : group.members) known[member.record][member.group] = {name, first};
  }
  return known;
}

json dump_of(const RankRecord& record, const std::map<int, Known>& known) {
  json config = json::object();
  for (const auto& [index, group] : known) {
    const GroupInfo& info = record.groups[static_cast<std::size_t>(index)];
    config[group.name] = {
        {"name", group.name}, {"desc", info.name}, {"ranks", fmt::format("[{}]", fmt::join(info.ranks, ", "))}};
  }
  json entries = json::array();
  for (const Operation& operation : record.operations) {
    const auto group = known.find(operation.group);
    const bool is_shown = group != known.end() && !is_message(operation.op) && operation.op != Op::kOther;
    if (!is_shown || operation.number < group->second.first) continue;
    entries.push_back(entry_of(record, operation, group->second.name, entries.size()));
  }
  return {{"version", "2.10"},
          {"pg_config", std::move(config)},
          {"pg_status", json::object()},
          {"entries", std::move(entries)}};
}

}  // namespace

std::string chrome_trace(std::span<const RankRecord> records) {
  std::uint64_t begin = UINT64_MAX;
  for (const RankRecord& record : records) {
    if (!record.operations.empty()) begin = std::min(begin, record.operations.front().called + record.real);
  }
  const auto microseconds = [&](const RankRecord& record, std::uint64_t when) {
    return static_cast<double>(when + record.real - begin) * 1e-3;
  };
  json events = json::array();
  for (const RankRecord& record : records) {
    const std::string process = fmt::format("rank {} (pid {} on {})", record.rank, record.pid, record.host);
    events.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", record.rank}, {"args", {{"name", process}}}});
    events.push_back(
        {{"ph", "M"}, {"name", "process_sort_index"}, {"pid", record.rank}, {"args", {{"sort_index", record.rank}}}});
    for (std::size_t i = 0; i < record.groups.size(); ++i) {
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", record.rank},
                        {"tid", i},
                        {"args", {{"name", record.groups[i].name}}}});
    }
    for (const Operation& operation : record.operations) {
      const std::string group =
          operation.group < 0 ? "?" : record.groups[static_cast<std::size_t>(operation.group)].name;
      // Operations of one group overlap, which the events of threads cannot.
      json event{{"ph", "b"},
                 {"cat", group},
                 {"name", describe(record, operation)},
                 {"id", fmt::format("{}/{}", record.rank, operation.serial)},
                 {"pid", record.rank},
                 {"tid", std::max(0, operation.group)},
                 {"ts", microseconds(record, operation.called)}};
      event["args"] = {{"input_elements", operation.input},
                       {"output_elements", operation.output},
                       {"state", pytorch_state(operation)}};
      if (!operation.place.empty()) event["args"]["place"] = operation.place;
      events.push_back(event);
      event.erase("args");
      event["ph"] = "e";
      event["ts"] =
          microseconds(record, operation.under_way() ? std::max(record.now, operation.called) : operation.ended);
      events.push_back(std::move(event));
    }
  }
  const json all{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return all.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

Status write_pytorch(std::span<const RankRecord> records, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Status::from_errno(fmt::format("cannot make the folder '{}'", folder), error.value());
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with("rank_")) continue;
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' holds '{}': expected an empty folder, because PyTorch's analyser reads all files in it",
                    folder, entry.path().filename().string()));
  }
  const auto known = known_groups(records);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::string bytes = Pickle().make(dump_of(records[i], known[i]));
    const std::string path = fmt::format("{}/rank_{}", folder, records[i].rank);
    LOCKSTEP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
    LOCKSTEP_RETURN_IF_ERROR(file.append(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size())));
    LOCKSTEP_RETURN_IF_ERROR(file.commit());
  }
  return {};
}

}  // namespace lockstep::flight
