#include "launch/world/mpirun.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace lockstep::launch {
namespace {

constexpr std::string_view kProxy = "hydra_pmi_proxy";  // 15 characters, as many as the kernel keeps of a name
constexpr int kMostAncestors = 64;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// "1214185472.0;tcp://10.77.0.1,192.168.0.1:43441", with IPv6 "tcp6://[fd77::1]:43441".
std::string host_in_uri(std::string_view uri) {
  for (const std::string_view start : {"tcp://", "tcp6://"}) {
    const std::size_t at = uri.find(start);
    if (at == std::string_view::npos) continue;
    std::string_view rest = uri.substr(at + start.size());
    const bool brackets = rest.starts_with('[');
    if (brackets) rest.remove_prefix(1);
    return std::string(rest.substr(0, rest.find_first_of(brackets ? "]," : ":,;")));
  }
  return {};
}

// "prterun-HOST-9394@1": the host's name may have a '-' too.
std::string host_in_name(std::string_view name) {
  if (!name.starts_with("prterun-") && !name.starts_with("prte-")) return {};
  name.remove_prefix(name.find('-') + 1);
  const std::size_t end = name.substr(0, name.find('@')).rfind('-');
  return end == std::string_view::npos ? std::string() : std::string(name.substr(0, end));
}

}  // namespace

std::string host_of_mpirun(const Environment& environment) {
  if (const auto uri = environment.get("OMPI_MCA_orte_hnp_uri")) return host_in_uri(*uri);
  if (const auto name = environment.get("PMIX_NAMESPACE"); name && environment.has("OMPI_COMM_WORLD_RANK")) {
    return host_in_name(*name);
  }
  const std::string control = environment.get(kHydraControl).value_or("");
  return control.substr(0, control.rfind(':'));
}

std::string job_of_mpirun(const Environment& environment) {
  for (const char* name : {"OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMIX_NAMESPACE", kHydraControl}) {
    if (auto job = environment.get(name)) return *std::move(job);
  }
  return {};
}

std::optional<std::string> control_of_proxy(std::string_view command_line) {
  constexpr std::string_view kOption("--control-port\0", 15);
  const std::size_t at = command_line.find(kOption);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = command_line.substr(at + kOption.size());
  const std::string_view control = rest.substr(0, rest.find('\0'));
  const std::size_t colon = control.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  return std::string(control);
}

Environment with_hydra(Environment environment) {
  if (!environment.has("PMI_RANK") || !environment.has("PMI_FD")) return environment;
  long pid = getppid();
  for (int i = 0; i < kMostAncestors && pid > 1; ++i) {
    const std::string folder = fmt::format("/proc/{}", pid);
    if (content_of(folder + "/comm").starts_with(kProxy)) {
      if (const auto control = control_of_proxy(content_of(folder + "/cmdline"))) {
        environment.set(kHydraControl, *control);
      }
      break;
    }
    // "PID (NAME) STATE PARENT": the name may hold anything.
    const std::string stat = content_of(folder + "/stat");
    const std::size_t after = stat.rfind(") ");
    if (after == std::string::npos || after + 4 >= stat.size()) break;
    pid = std::strtol(stat.c_str() + after + 4, nullptr, 10);
  }
  return environment;
}

}  // namespace lockstep::launch
