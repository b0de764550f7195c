#include "flight/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::flight {
namespace {

using nlohmann::json;

const Operation* oldest_wait(const RankRecord& record) {
  for (const Operation& operation : record.operations) {
    if (operation.under_way() && operation.waited != 0) return &operation;
  }
  return nullptr;
}

std::string in_group(const RankRecord& record, const Operation& operation) {
  if (operation.group < 0) return "";
  return fmt::format(" of '{}'", record.groups[static_cast<std::size_t>(operation.group)].name);
}

std::uint64_t since(const RankRecord& record, std::uint64_t when) {
  return record.now > when ? record.now - when : 0;
}

// What the rank does, for the table.
std::string state_of(const RankRecord& record) {
  const std::string process =
      record.ended || (!record.is_dump && record.process == "is stopped") ? record.process + "; " : "";
  if (const Operation* const wait = oldest_wait(record)) {
    return fmt::format("{}{} in {}{} for {}", process, record.ended ? "was" : "waits", describe(record, *wait),
                       in_group(record, *wait), span_text(since(record, wait->called)));
  }
  if (record.operations.empty()) return process + "has called nothing";
  const Operation& last = record.operations.back();
  const char* const verb = last.outcome == Outcome::kFailed ? "failed" : "ended";
  if (last.under_way()) {
    return fmt::format("{}has started {}{} {} ago", process, describe(record, last), in_group(record, last),
                       span_text(since(record, last.called)));
  }
  return fmt::format("{}{}{} {} {} ago", process, describe(record, last), in_group(record, last), verb,
                     span_text(since(record, last.ended)));
}

// How long the record reaches back, and for how much of that the program has waited in operations.
struct Share {
  std::uint64_t span = 0;
  std::uint64_t waited = 0;

  double part() const { return span == 0 ? 0 : static_cast<double>(waited) / static_cast<double>(span); }
};

Share waited_share(const RankRecord& record) {
  Share share;
  if (record.operations.empty()) return share;
  std::uint64_t until = record.operations.front().called;
  share.span = since(record, until);
  for (const Operation& operation : record.operations) {
    if (operation.waited == 0 || operation.outcome == Outcome::kHandedOver) continue;
    const std::uint64_t begin = std::max(until, operation.waited);
    const std::uint64_t end = std::min(operation.under_way() ? record.now : operation.ended, record.now);
    if (end <= begin) continue;
    share.waited += end - begin;
    until = end;
  }
  return share;
}

// The rank for which the others wait, if they do so all the time; empty: there is none.
std::string slowest(std::span<const RankRecord> records) {
  constexpr double kMuch = 0.2;
  constexpr std::size_t kEnough = 20;  // operations
  const RankRecord* slow = nullptr;
  double least = 1;
  double next = 1;
  std::uint64_t span = UINT64_MAX;
  for (const RankRecord& record : records) {
    const Share share = waited_share(record);
    if (record.operations.size() < kEnough || record.ended) return {};
    span = std::min(span, share.span);
    next = std::min(next, std::max(least, share.part()));
    if (share.part() >= least) continue;
    next = least;
    least = share.part();
    slow = &record;
  }
  if (slow == nullptr || records.size() < 2 || next - least < kMuch) return {};
  return fmt::format(
      "Rank {} is the slowest: in the last {} it waited {:.0f} % of the time for the others, and each of them {:.0f} % "
      "or more.",
      slow->rank, span_text(span), 100 * least, 100 * next);
}

json to_json(const RankRecord& record) {
  json groups = json::array();
  for (const GroupInfo& group : record.groups) {
    groups.push_back({{"name", group.name},
                      {"backend", group.backend},
                      {"rank", group.rank},
                      {"size", group.size},
                      {"ranks", group.ranks},
                      {"left", group.left}});
  }
  json operations = json::array();
  constexpr std::array kOutcomes{"under way", "done", "failed", "handed over"};
  for (const Operation& operation : record.operations) {
    json one{{"serial", operation.serial},
             {"operation", name_of(operation.op)},
             {"group", operation.group},
             {"type", type_name(operation.type)},
             {"input_elements", operation.input},
             {"output_elements", operation.output},
             {"called_ns", operation.called + record.real},
             {"state", kOutcomes[static_cast<std::size_t>(operation.outcome)]}};
    one[is_message(operation.op) ? "tag" : "number"] = operation.number;
    if (operation.peer >= 0) one["peer"] = operation.peer;
    if (operation.waited != 0) one["waited_ns"] = operation.waited + record.real;
    if (operation.ended != 0) one["ended_ns"] = operation.ended + record.real;
    if (!operation.place.empty()) one["place"] = operation.place;
    operations.push_back(std::move(one));
  }
  return {{"rank", record.rank},
          {"pid", record.pid},
          {"host", record.host},
          {"job", record.job},
          {"attempt", record.attempt},
          {"source", record.source},
          {"dump", record.is_dump},
          {"process", record.process},
          {"ended", record.ended},
          {"now_ns", record.now + record.real},
          {"total", record.total},
          {"groups", std::move(groups)},
          {"operations", std::move(operations)}};
}

}  // namespace

std::string span_text(std::uint64_t nanoseconds) {
  const double seconds = static_cast<double>(nanoseconds) * 1e-9;
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::uint64_t>(seconds);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

std::string describe(const RankRecord& record, const Operation& operation) {
  const std::uint64_t elements = std::max(operation.input, operation.output);
  const bool no_data =
      operation.op == Op::kBarrier || operation.op == Op::kMonitoredBarrier || operation.op == Op::kOther;
  const std::string data = no_data ? "" : fmt::format(" ({} {})", elements, type_name(operation.type));
  if (!is_message(operation.op)) return fmt::format("{} #{}{}", name_of(operation.op), operation.number, data);
  std::string peer = "any rank";
  if (operation.peer >= 0) {
    const auto index = static_cast<std::size_t>(operation.peer);
    int rank = operation.peer;
    if (operation.group >= 0) {
      const std::vector<int>& ranks = record.groups[static_cast<std::size_t>(operation.group)].ranks;
      if (index < ranks.size()) rank = ranks[index];
    }
    peer = fmt::format("rank {}", rank);
  }
  return fmt::format("{} {} {}, tag {}{}", name_of(operation.op), operation.op == Op::kSend ? "to" : "from", peer,
                     operation.number, data);
}

std::string report_text(std::span<const RankRecord> records) {
  std::string text = fmt::format("{:>5} {:>8} {:<16} {:>7} {}\n", "RANK", "PROCESS", "HOST", "WAITED", "WHAT IT DOES");
  for (const RankRecord& record : records) {
    text += fmt::format("{:>5} {:>8} {:<16} {:>5.0f} % {}\n", record.rank, record.pid, record.host,
                        100 * waited_share(record).part(), state_of(record));
  }
  const std::vector<std::string> found = findings(records);
  text += found.empty() ? "\nNothing is wrong as far as the recorders show: no rank waits for another one for long.\n"
                        : "\nWhat is wrong:\n";
  for (const std::string& one : found) text += fmt::format("- {}\n", one);
  const std::string slow = found.empty() ? slowest(records) : "";
  return slow.empty() ? text : text + slow + "\n";
}

std::string report_json(std::span<const RankRecord> records) {
  json ranks = json::array();
  for (const RankRecord& record : records) ranks.push_back(to_json(record));
  const json all{{"ranks", std::move(ranks)}, {"findings", findings(records)}};
  return all.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::flight
