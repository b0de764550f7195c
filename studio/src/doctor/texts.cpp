// What `lockstep doctor` and `lockstep bench` print.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "doctor/checks.h"
#include "doctor/measure.h"

namespace lockstep::doctor {
namespace {

std::ptrdiff_t count(const Findings& findings, Level level) {
  return std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.level == level; });
}

}  // namespace

const char* name_of(Level level) {
  return level == Level::kOk ? "ok" : level == Level::kWarning ? "warning" : "problem";
}

std::string to_text(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<8} {:<10} {}\n", name_of(finding.level), finding.topic, finding.text);
    if (!finding.advice.empty()) text += fmt::format("{:<20}-> {}\n", "", finding.advice);
  }
  const auto counted = [&](Level level) {
    const auto number = count(findings, level);
    return fmt::format("{} {}{}", number, name_of(level), number == 1 ? "" : "s");
  };
  return text + fmt::format("{} ok, {}, {}\n", count(findings, Level::kOk), counted(Level::kWarning),
                            counted(Level::kProblem));
}

std::string to_json(const Findings& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& f : findings) {
    list.push_back({{"topic", f.topic}, {"level", name_of(f.level)}, {"text", f.text}, {"advice", f.advice}});
  }
  const nlohmann::json all{{"findings", std::move(list)},
                           {"warnings", count(findings, Level::kWarning)},
                           {"problems", count(findings, Level::kProblem)}};
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

namespace {

std::string size_text(std::size_t bytes) {
  if (bytes >= 1 << 20) return fmt::format("{:.4g} MiB", double(bytes) / (1 << 20));
  if (bytes >= 1 << 10) return fmt::format("{:.4g} KiB", double(bytes) / (1 << 10));
  return fmt::format("{} B", bytes);
}

}  // namespace

std::string to_table(const std::vector<Measurement>& measurements) {
  std::string text =
      fmt::format("{:>10} {:>6} {:>13} {:>13} {:>10} {:>13}\n", "bytes", "ranks", "median", "least", "GB/s", "memcpy");
  for (const Measurement& one : measurements) {
    text += fmt::format("{:>10} {:>6} {:>10.1f} us {:>10.1f} us {:>10.2f} {:>10.1f} us\n", size_text(one.bytes),
                        one.ranks, one.median_seconds * 1e6, one.least_seconds * 1e6,
                        double(one.bytes) / one.median_seconds / 1e9, one.copy_seconds * 1e6);
  }
  return text;
}

std::string to_json(const std::vector<Measurement>& measurements) {
  nlohmann::json list = nlohmann::json::array();
  for (const Measurement& one : measurements) {
    list.push_back({{"operation", "all_reduce"},
                    {"bytes", one.bytes},
                    {"ranks", one.ranks},
                    {"median_seconds", one.median_seconds},
                    {"least_seconds", one.least_seconds},
                    {"copy_seconds", one.copy_seconds}});
  }
  return list.dump(2) + "\n";
}

Result<std::vector<std::size_t>> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    double number = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const std::string unit(stop, static_cast<std::size_t>(word.data() + word.size() - stop));
    const double scale = unit.empty() || unit == "B" ? 1
                         : unit == "K"               ? 1 << 10
                         : unit == "M"               ? 1 << 20
                         : unit == "G"               ? 1 << 30
                                                     : 0;
    const double bytes = number * scale;
    // At most 64 GiB: a larger buffer would take too long.
    if (error != std::errc() || !(bytes >= 4) || bytes > double(1ULL << 36U)) {
      return Status(
          ErrorCode::kInvalidArgument,
          fmt::format("--sizes '{}': '{}' is not a size; expected numbers of 4 to 64G bytes such as 4K,1M,64M", text,
                      word));
    }
    sizes.push_back(static_cast<std::size_t>(bytes));
    begin = end + 1;
  }
  return sizes;
}

}  // namespace lockstep::doctor
