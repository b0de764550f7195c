#include "launch/world/slurm.h"

#include <fmt/format.h>

#include <charconv>

#include "base/number_text.h"

namespace lockstep::launch {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr int kMostNodes = 1 << 20;  // refuses values such as 1(x2000000000)

std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

// Older versions call it SLURM_STEPID.
std::optional<std::string> step_id(const Environment& environment) {
  auto step = environment.get("SLURM_STEP_ID");
  return step ? step : environment.get("SLURM_STEPID");
}

}  // namespace

bool inside_slurm_step(const Environment& environment) {
  // Batch scripts, interactive shells and Slurm's own processes have step ids from here on.
  constexpr std::uint64_t kFirstSpecialStep = 0xfffffff0;
  const auto step = step_id(environment);
  if (!step || !environment.has("SLURM_PROCID")) return false;
  const auto id = number_from_text<std::uint64_t>(*step);
  return id && *id < kFirstSpecialStep;
}

std::string slurm_step_name(const Environment& environment) {
  return fmt::format("{}.{}", environment.get("SLURM_JOB_ID").value_or("0"), step_id(environment).value_or("0"));
}

std::string slurm_run_name(const Environment& environment) {
  const auto restarts = environment.get("SLURM_RESTART_COUNT");
  const std::string name = "slurm-" + slurm_step_name(environment);
  return restarts && *restarts != "0" ? fmt::format("{}-restart{}", name, *restarts) : name;
}

std::optional<std::string> first_host(std::string_view node_list) {
  std::string host;
  while (!node_list.empty() && node_list[0] != ',') {
    if (!take(node_list, "[")) {
      if (node_list[0] == ']') return std::nullopt;
      host += node_list[0];
      node_list.remove_prefix(1);
      continue;
    }
    // The first number keeps its leading zeros.
    const auto digits = node_list.substr(0, node_list.find_first_not_of(kDigits));
    const auto closing = node_list.find(']');
    if (digits.empty() || closing == std::string_view::npos) return std::nullopt;
    if (const char after = node_list[digits.size()]; after != '-' && after != ',' && after != ']') return std::nullopt;
    host += digits;
    node_list.remove_prefix(closing + 1);
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::optional<std::vector<int>> tasks_per_node(std::string_view text) {
  std::vector<int> result;
  do {
    const auto tasks = take_number(text);
    std::optional<int> nodes = 1;
    if (tasks && take(text, "(x")) {
      nodes = take_number(text);
      if (!take(text, ")")) return std::nullopt;
    }
    if (!tasks || !nodes || static_cast<int>(result.size()) > kMostNodes - *nodes) return std::nullopt;
    result.insert(result.end(), static_cast<std::size_t>(*nodes), *tasks);
  } while (take(text, ","));
  if (!text.empty()) return std::nullopt;
  return result;
}

}  // namespace lockstep::launch
