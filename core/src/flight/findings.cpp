// What is wrong, in words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "flight/report.h"

namespace lockstep::flight {
namespace {

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 16;
  const std::span shown = std::span(ranks).first(std::min(ranks.size(), kShown));
  std::string text = fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(shown, ", "));
  if (ranks.size() > kShown) text += fmt::format(" and {} more", ranks.size() - kShown);
  return text;
}

// What of an operation all ranks must give alike, as far as one rank's entry shows it.
std::string shape_of(const Operation& operation) {
  std::string shape = fmt::format("{}", name_of(operation.op));
  const auto elements = std::max(operation.input, operation.output);
  const std::string type = type_name(operation.type);
  switch (operation.op) {
    case Op::kAllReduce:
    case Op::kAllReduceCoalesced:
    case Op::kReduce:
    case Op::kBroadcast:
    case Op::kAllGatherIntoTensor:
    case Op::kReduceScatterTensor: shape += fmt::format(" ({} {})", elements, type); break;
    case Op::kBarrier:
    case Op::kMonitoredBarrier: break;
    default: shape += fmt::format(" ({})", type);
  }
  if (operation.peer >= 0) shape += fmt::format(" with root {}", operation.peer);
  return shape;
}

// One rank's part in a shared group.
struct Part {
  const RankRecord* record = nullptr;
  int rank = 0;  // of the world
  bool left = false;
  std::map<std::uint64_t, const Operation*> collectives;  // by number

  std::uint64_t last() const { return collectives.empty() ? 0 : collectives.rbegin()->first; }
  const Operation* at(std::uint64_t number) const {
    const auto found = collectives.find(number);
    return found == collectives.end() ? nullptr : found->second;
  }
};

std::vector<Part> parts_of(std::span<const RankRecord> records, const SharedGroup& group) {
  std::vector<Part> parts;
  for (const SharedGroup::Member& member : group.members) {
    const RankRecord& record = records[member.record];
    const GroupInfo& info = record.groups[static_cast<std::size_t>(member.group)];
    const auto own = static_cast<std::size_t>(info.rank);
    Part part{&record, own < info.ranks.size() ? info.ranks[own] : info.rank, info.left, {}};
    for (const Operation& operation : record.operations) {
      if (operation.group != member.group || is_message(operation.op)) continue;
      part.collectives[operation.number] = &operation;
    }
    parts.push_back(std::move(part));
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.rank < b.rank; });
  return parts;
}

std::uint64_t age(const RankRecord& record, std::uint64_t when) {
  return record.now > when ? record.now - when : 0;
}

bool is_long_wait(const RankRecord& record, const Operation& operation) {
  return operation.under_way() && (record.is_dump || age(record, operation.called) >= kPatience);
}

// The first collective in which a rank waits; if no rank waits, the first one after whose failure a rank has come
// through no other. A program may handle a failure and go on, so an earlier failure does not count.
std::optional<std::uint64_t> first_trouble(const std::vector<Part>& parts) {
  std::optional<std::uint64_t> waiting;
  std::optional<std::uint64_t> failed;
  for (const Part& part : parts) {
    std::optional<std::uint64_t> own_failure;
    for (const auto& [number, operation] : part.collectives) {
      if (operation->outcome == Outcome::kFailed) {
        if (!own_failure) own_failure = number;
      } else if (operation->outcome == Outcome::kDone) {
        own_failure.reset();
      } else if (is_long_wait(*part.record, *operation)) {
        if (!waiting || number < *waiting) waiting = number;
      }
    }
    if (own_failure && (!failed || *own_failure < *failed)) failed = own_failure;
  }
  return waiting ? waiting : failed;
}

// What a rank does that is not in an operation of interest: where else it waits.
std::string elsewhere(const RankRecord& record) {
  if (record.ended) return fmt::format("its process has {}", record.process);
  for (const Operation& operation : record.operations) {
    if (!operation.under_way() || operation.waited == 0) continue;
    return fmt::format("it waits in {} for {}", describe(record, operation), span_text(age(record, operation.called)));
  }
  if (record.operations.empty()) return "it has called nothing at all";
  std::string text = record.process.empty() || record.is_dump ? "it is outside of Lockstep"
                                                              : fmt::format("its process {}", record.process);
  const Operation& last = record.operations.back();
  if (last.ended != 0)
    text += fmt::format(" since {} ended, {} ago", describe(record, last), span_text(age(record, last.ended)));
  return text;
}

// "rank 2 has not called it: ...".
std::string absence(const Part& part, const SharedGroup& group) {
  std::string text =
      fmt::format("rank {} (pid {} on {}) has not called it: ", part.rank, part.record->pid, part.record->host);
  if (part.left) return text + "it has left the group";
  if (part.last() != 0) {
    const Operation& last = *part.collectives.rbegin()->second;
    text += fmt::format("its last collective of '{}' was {} #{}; ", group.name, name_of(last.op), last.number);
  } else {
    text += fmt::format("it has called no collective of '{}'; ", group.name);
  }
  return text + elsewhere(*part.record);
}

// The same of a rank whose recorder does not hold the group.
std::string absence(const RankRecord& record) {
  return fmt::format("rank {} (pid {} on {}) has not made the group, or its recorder has forgotten it: {}", record.rank,
                     record.pid, record.host, elsewhere(record));
}

void add_trouble(std::span<const RankRecord> records, const SharedGroup& group, const std::vector<Part>& parts,
                 std::vector<std::string>& found) {
  const auto number = first_trouble(parts);
  if (!number) return;
  std::vector<int> waiting;
  std::vector<int> failed;
  std::vector<std::string> others;
  const Operation* shown = nullptr;
  const RankRecord* shown_by = nullptr;
  std::uint64_t longest = 0;
  std::set<int> known;
  for (const Part& part : parts) {
    known.insert(part.rank);
    const Operation* const operation = part.at(*number);
    if (operation == nullptr) {
      if (part.last() < *number) others.push_back(absence(part, group));
      continue;
    }
    if (operation->outcome == Outcome::kDone) continue;
    (operation->outcome == Outcome::kFailed ? failed : waiting).push_back(part.rank);
    const std::uint64_t took =
        operation->ended != 0 ? operation->ended - operation->called : age(*part.record, operation->called);
    if (shown == nullptr || took > longest) {
      shown = operation;
      shown_by = part.record;
      longest = took;
    }
  }
  if (shown == nullptr) return;
  std::string text = fmt::format("Group '{}': ", group.name);
  if (!waiting.empty()) {
    text += fmt::format("{} {} in {} for {}", ranks_text(waiting), waiting.size() == 1 ? "waits" : "wait",
                        describe(*shown_by, *shown), span_text(longest));
  }
  if (!failed.empty()) {
    const std::string what = waiting.empty() ? describe(*shown_by, *shown) : "it";
    text += fmt::format("{}{} of {} failed after {}", waiting.empty() ? "" : "; ", what, ranks_text(failed),
                        span_text(longest));
  }
  std::vector<int> unknown;
  for (const int rank : group.ranks) {
    if (known.contains(rank)) continue;
    const auto record = std::find_if(records.begin(), records.end(), [&](const auto& one) { return one.rank == rank; });
    record == records.end() ? unknown.push_back(rank) : others.push_back(absence(*record));
  }
  if (!shown->place.empty()) {
    text += shown->place.front() == '(' ? " " + shown->place : fmt::format(" (called at {})", shown->place);
  }
  for (const std::string& other : others) text += "; " + other;
  if (!unknown.empty()) {
    text += fmt::format("; of {} there is no record here: look on {} machine{}", ranks_text(unknown),
                        unknown.size() == 1 ? "its" : "their", unknown.size() == 1 ? "" : "s");
  }
  if (others.empty() && unknown.empty() && !waiting.empty()) text += "; every rank has called it";
  found.push_back(text + ".");
}

// The first number under which ranks have called different things. What a rank has refused is not known.
void add_differences(const SharedGroup& group, const std::vector<Part>& parts, std::vector<std::string>& found) {
  std::set<std::uint64_t> numbers;
  for (const Part& part : parts) {
    for (const auto& [number, operation] : part.collectives) numbers.insert(number);
  }
  for (const std::uint64_t number : numbers) {
    std::map<std::string, std::vector<int>> by_shape;
    for (const Part& part : parts) {
      const Operation* const operation = part.at(number);
      if (operation != nullptr && operation->op != Op::kOther) by_shape[shape_of(*operation)].push_back(part.rank);
    }
    if (by_shape.size() < 2) continue;
    std::string text = fmt::format("Group '{}': ranks differ in collective #{}", group.name, number);
    const char* before = ": ";
    for (const auto& [shape, ranks] : by_shape) {
      text += fmt::format("{}{} called {}", before, ranks_text(ranks), shape);
      before = "; ";
    }
    found.push_back(text + ".");
    return;
  }
}

void add_messages(const RankRecord& record, std::vector<std::string>& found) {
  for (const Operation& operation : record.operations) {
    if (!is_message(operation.op) || !operation.under_way() || operation.waited == 0) continue;
    if (!is_long_wait(record, operation)) continue;
    found.push_back(fmt::format("Rank {} waits in {} for {}.", record.rank, describe(record, operation),
                                span_text(age(record, operation.called))));
  }
}

}  // namespace

std::vector<std::string> findings(std::span<const RankRecord> records) {
  std::vector<std::string> found;
  for (const RankRecord& record : records) {
    if (!record.ended) continue;
    std::string text =
        fmt::format("Rank {} (pid {} on {}) has {}", record.rank, record.pid, record.host, record.process);
    if (!record.operations.empty()) {
      const Operation& last = record.operations.back();
      text += fmt::format("; its last operation was {}, {}", describe(record, last),
                          last.under_way()                   ? "under way"
                          : last.outcome == Outcome::kFailed ? "failed"
                                                             : "done");
    }
    found.push_back(text + ".");
  }
  for (const SharedGroup& group : shared_groups(records)) {
    const std::vector<Part> parts = parts_of(records, group);
    if (std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.left; })) continue;
    add_differences(group, parts, found);
    add_trouble(records, group, parts, found);
  }
  for (const RankRecord& record : records) add_messages(record, found);
  return found;
}

}  // namespace lockstep::flight
