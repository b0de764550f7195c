#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "doctor/checks.h"
#include "doctor/text_files.h"
#include "launch/process/cores.h"
#include "site/topology.h"

namespace lockstep::doctor {
namespace {

std::string model_of(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "processor of unknown make";
}

std::string caches_of(const std::string& root) {
  std::string text;
  for (int i = 0; i < 8; ++i) {
    const std::string folder = fmt::format("{}/sys/devices/system/cpu/cpu0/cache/index{}/", root, i);
    const std::string type = first_line(folder + "type");
    if (type.empty() || type == "Instruction") continue;
    text +=
        fmt::format("{}L{} {}", text.empty() ? "" : ", ", first_line(folder + "level"), first_line(folder + "size"));
  }
  return text.empty() ? "not known" : text;
}

Finding check_cores(const std::string& root) {
  const auto allowed = static_cast<int>(launch::allowed_cores().size());
  const auto limit = launch::cgroup_cores(root + "/proc/self/cgroup", root + "/sys/fs/cgroup");
  const std::string text = fmt::format("{} cores for this process ({})", allowed, model_of(root));
  if (limit && *limit < allowed) {
    return warning("cores", fmt::format("{}, but the control group pays for {:.1f}", text, *limit),
                   "more ranks or threads than that only wait for one another: raise cpu.max (docker --cpus) or use "
                   "--nproc-per-node cpu, which counts it");
  }
  return ok("cores", text);
}

Finding check_load(const std::string& root) {
  const double load = std::atof(first_line(root + "/proc/loadavg").c_str());
  const auto cores = static_cast<double>(launch::allowed_cores().size());
  const std::string text = fmt::format("load {:.1f} on {} cores", load, cores);
  if (load < 0.5 * cores + 0.5) return ok("load", text);
  return warning("load", text,
                 "other programs use the cores: figures measured now are too low, and pinned workers may be "
                 "slower than with --no-pin");
}

}  // namespace

Findings check_processor(const std::string& root) {
  Findings findings{check_cores(root), ok("caches", caches_of(root))};
  auto topology = site::read_topology();
  if (topology.ok()) {
    int nodes = 0;
    for (const site::Core& core : topology->cores) nodes = std::max(nodes, core.numa_node + 1);
    findings.push_back(ok("topology", fmt::format("{} physical cores, NUMA nodes: {}", topology->cores.size(), nodes)));
  } else if (site::has_structure()) {
    findings.push_back(warning("topology", topology.status().message(),
                               "workers are not placed near their memory: apt-get install libhwloc15"));
  }
  findings.push_back(check_load(root));
  const std::string governor = first_line(root + "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (governor == "powersave" &&
      first_line(root + "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver") != "intel_pstate") {
    findings.push_back(warning("clock", "the cores run at their lowest clock (governor powersave)",
                               "as root: cpupower frequency-set -g performance"));
  }
  return findings;
}

}  // namespace lockstep::doctor
