#include "flight/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "flight/waits.h"

namespace lockstep::flight {
namespace {

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

// The part of the recorded time, in percent, for which the program has waited in operations.
double waited_percent(const Waits& waits, std::size_t index, const RankRecord& record) {
  if (record.operations.empty()) return 0;
  const TimeSplit split = waits.split(index, record.operations.front().called, record.now);
  return split.percent(split.communication + split.waiting);
}

// Per step where the steps are known; else parts of the recorded time.
std::string times_line(const std::string& name, const TimeSplit& split) {
  const bool has_steps = split.steps > 0;
  return fmt::format("{:>5} {:>6} {:>10} {:>7} {:>7.0f} % {:>11.0f} % {:>7.0f} %\n", name,
                     has_steps ? std::to_string(split.steps) : "-",
                     has_steps ? span_text(split.span / split.steps) : "-",
                     has_steps ? fmt::format("{:.0f} %", split.percent(split.input)) : "-",
                     split.percent(split.compute()), split.percent(split.communication), split.percent(split.waiting));
}

// For whom there is nothing to compare, there is no table.
std::string times_table(std::span<const RankRecord> records, const Waits& waits) {
  std::string lines;
  TimeSplit all;
  std::size_t known = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const TimeSplit split = waits.split(i);
    if (split.span == 0) continue;
    lines += times_line(std::to_string(records[i].rank), split);
    all.steps = known == 0 ? split.steps : std::min(all.steps, split.steps);
    ++known;
  }
  if (known == 0) return {};
  // All ranks weigh the same, however far their recorders reach back.
  constexpr double kWhole = 1e9;
  double step = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const TimeSplit split = waits.split(i);
    if (split.span == 0) continue;
    const double scale = kWhole / static_cast<double>(split.span) / static_cast<double>(known);
    const auto scaled = [&](std::uint64_t time) {
      return static_cast<std::uint64_t>(static_cast<double>(time) * scale);
    };
    all.input += scaled(split.input);
    all.communication += scaled(split.communication);
    all.waiting += scaled(split.waiting);
    if (split.steps > 0) step += static_cast<double>(split.span) / static_cast<double>(split.steps * known);
  }
  all.span = static_cast<std::uint64_t>(kWhole);
  std::string line = times_line("all", all);
  if (all.steps > 0) {
    line.replace(13, 10, fmt::format("{:>10}", span_text(static_cast<std::uint64_t>(step))));
  }
  return fmt::format("\n{:>5} {:>6} {:>10} {:>7} {:>9} {:>13} {:>9}\n", "RANK", "STEPS", "ONE STEP", "INPUT", "COMPUTE",
                     "COMMUNICATION", "WAITING") +
         lines + (known > 1 ? line : "");
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
  const Waits waits(records);
  for (std::size_t i = 0; i < records.size(); ++i) {
    const RankRecord& record = records[i];
    text += fmt::format("{:>5} {:>8} {:<16} {:>5.0f} % {}\n", record.rank, record.pid, record.host,
                        waited_percent(waits, i, record), state_of(record));
  }
  const std::vector<std::string> found = findings(records);
  text += found.empty() ? "\nNothing is wrong as far as the recorders show: no rank waits for another one for long.\n"
                        : "\nWhat is wrong:\n";
  for (const std::string& one : found) text += fmt::format("- {}\n", one);
  constexpr double kMuch = 0.2;  // one look may meet a chance
  const auto slow = found.empty() ? find_laggard(records, kMuch) : std::nullopt;
  if (slow) text += fmt::format("A slow rank: {}.\n", describe(records[slow->record], *slow));
  return text + times_table(records, waits);
}

}  // namespace lockstep::flight
