#include "doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

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

}  // namespace lockstep::doctor
