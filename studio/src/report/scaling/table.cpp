// The numbers of the table, as text, and its file.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "base/printable.h"
#include "base/regular_file.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/report/scaling.h"
#include "report/json.h"
#include "report/page/page.h"

namespace lockstep::report {
namespace {

constexpr std::string_view kFile = "scaling.json";
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Spread spread_of(const std::vector<Measurement>& runs, double Measurement::*field) {
  std::vector<double> values;
  for (const Measurement& run : runs) {
    if (std::isfinite(run.*field)) values.push_back(run.*field);
  }
  if (values.empty()) return {kNan, kNan, kNan};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {median(values), *low, *high};
}

std::string percent(double part) {
  return std::isfinite(part) ? fmt::format("{:.1f}%", 100.0 * part) : "-";
}

std::string hundredths(double value) {
  return std::isfinite(value) ? fmt::format("{:.2f}", value) : "-";
}

// The smallest and the largest only where they do not look the same.
std::string with_range(const Spread& spread, std::string (*text)(double)) {
  const std::string low = text(spread.low);
  const std::string high = text(spread.high);
  return low == high ? text(spread.median) : fmt::format("{} ({} to {})", text(spread.median), low, high);
}

Json to_json(const Spread& spread) {
  return {to_json_number(spread.median), to_json_number(spread.low), to_json_number(spread.high)};
}

Spread spread_from(const Json& json) {
  return {from_json_number(json.at(0)), from_json_number(json.at(1)), from_json_number(json.at(2))};
}

ScalingTable table_from(const Json& json) {
  ScalingTable table;
  table.kind = json.at("kind").get<std::string>() == "weak" ? ScalingKind::kWeak : ScalingKind::kStrong;
  table.command = json.at("command").get<std::vector<std::string>>();
  for (const Json& row : json.at("rows")) {
    table.rows.push_back({.processes = row.at("processes").get<int>(),
                          .runs = row.at("runs").get<int>(),
                          .seconds = spread_from(row.at("seconds_per_epoch")),
                          .speed_up = from_json_number(row.at("speed_up")),
                          .efficiency = from_json_number(row.at("efficiency")),
                          .accuracy = spread_from(row.at("accuracy")),
                          .device_use = spread_from(row.at("device_use"))});
  }
  return table;
}

}  // namespace

ScalingTable scaling_table(const std::vector<Measurement>& measurements, ScalingKind kind,
                           std::vector<std::string> command) {
  std::map<int, std::vector<Measurement>> by_processes;
  for (const Measurement& run : measurements) by_processes[run.processes].push_back(run);
  ScalingTable table{.kind = kind, .command = std::move(command)};
  for (const auto& [processes, runs] : by_processes) {
    ScalingRow row{.processes = processes,
                   .runs = static_cast<int>(runs.size()),
                   .seconds = spread_of(runs, &Measurement::seconds_per_epoch),
                   .accuracy = spread_of(runs, &Measurement::accuracy),
                   .device_use = spread_of(runs, &Measurement::device_use)};
    const ScalingRow& first = table.rows.empty() ? row : table.rows.front();
    const double times_faster = first.seconds.median / row.seconds.median;
    // Weak: n processes do n times the work in that time.
    const double relative = kind == ScalingKind::kWeak ? times_faster * processes / first.processes : times_faster;
    row.speed_up = relative * first.processes;
    row.efficiency = row.speed_up / processes;
    table.rows.push_back(row);
  }
  return table;
}

std::string to_text(const ScalingTable& table) {
  std::vector<std::vector<std::string>> cells = {
      {"processes", "seconds per epoch", "speed-up", "efficiency", "device use", "accuracy"}};
  for (const ScalingRow& row : table.rows) {
    cells.push_back({std::to_string(row.processes), with_range(row.seconds, hundredths),
                     std::isfinite(row.speed_up) ? fmt::format("{:.2f}x", row.speed_up) : "-", percent(row.efficiency),
                     with_range(row.device_use, percent), with_range(row.accuracy, percent)});
  }
  std::vector<std::size_t> widths(cells.front().size());
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      fmt::format_to(std::back_inserter(text), "{}{:>{}}", i == 0 ? "" : "  ", row[i], widths[i]);
    }
    text += '\n';
  }
  return text;
}

Status write_scaling(const ScalingTable& table, const std::filesystem::path& folder) {
  Json rows = Json::array();
  for (const ScalingRow& row : table.rows) {
    rows.push_back({{"processes", row.processes},
                    {"runs", row.runs},
                    {"seconds_per_epoch", to_json(row.seconds)},
                    {"speed_up", to_json_number(row.speed_up)},
                    {"efficiency", to_json_number(row.efficiency)},
                    {"accuracy", to_json(row.accuracy)},
                    {"device_use", to_json(row.device_use)}});
  }
  const Json json = {{"kind", table.kind == ScalingKind::kWeak ? "weak" : "strong"},
                     {"command", table.command},
                     {"rows", std::move(rows)}};
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  LOCKSTEP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(folder / kFile));
  LOCKSTEP_RETURN_IF_ERROR(file.append({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
  return file.commit();
}

Result<ScalingTable> read_scaling(const std::filesystem::path& folder) {
  constexpr std::uint64_t kMostBytes = 1 << 24;
  const std::filesystem::path path = folder / kFile;
  LOCKSTEP_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::open(path));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(std::min(file.size(), kMostBytes)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t got, file.read(bytes));
  bytes.resize(got);
  const Json json = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (json.is_discarded()) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("{}: expected a table of lockstep scaling, found no JSON of at most {} levels; remove "
                              "the file, or measure again",
                              printable(path.native()), kMostLevels));
  }
  try {
    return table_from(json);
  } catch (const Json::exception& error) {
    return Status(ErrorCode::kCorrupt, fmt::format("{}: expected a table of lockstep scaling: {}",
                                                   printable(path.native()), printable(error.what())));
  }
}

}  // namespace lockstep::report
