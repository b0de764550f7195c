// The checks of the machine: processor, memory, limits.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "doctor/checks.h"
#include "doctor/text_files.h"
#include "launch/process/cores.h"
#include "shm/memory_limits.h"
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

namespace {

double gib(double bytes) {
  return bytes / double(1ULL << 30U);
}

// In bytes, by the names of /proc/meminfo.
std::map<std::string, double> meminfo(const std::string& root) {
  std::map<std::string, double> values;
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    double kilobytes = 0;
    if (words >> name >> kilobytes) values[name.substr(0, name.size() - 1)] = kilobytes * 1024;
  }
  return values;
}

Finding check_available(const std::string& root) {
  auto info = meminfo(root);
  const double total = info["MemTotal"];
  const double available = info["MemAvailable"];
  const std::size_t limit = comm::cgroup_memory_limit(root + "/proc/self/cgroup", root + "/sys/fs/cgroup");
  std::string text = fmt::format("{:.1f} GiB, {:.1f} available", gib(total), gib(available));
  if (limit != comm::kNoLimit && double(limit) < total) {
    text += fmt::format("; the control group allows {:.1f}", gib(double(limit)));
  }
  if (total <= 0) return warning("memory", "/proc/meminfo cannot be read", "mount /proc");
  if (available < 0.1 * total) {
    return warning("memory", text, "end what uses it, or ranks may be killed by the system for lack of memory");
  }
  return ok("memory", text);
}

Finding check_huge_pages(const std::string& root) {
  const std::string folder = root + "/sys/kernel/mm/transparent_hugepage/";
  const std::string enabled = chosen_of(first_line(folder + "enabled"));
  const std::string shared = chosen_of(first_line(folder + "shmem_enabled"));
  if (enabled.empty()) return ok("huge pages", "this kernel has none");
  const std::string text =
      fmt::format("transparent: {}, of shared memory: {}", enabled, shared.empty() ? "none" : shared);
  if (enabled == "never") {
    return warning("huge pages", text,
                   "large models train faster with them; as root: echo madvise > "
                   "/sys/kernel/mm/transparent_hugepage/enabled");
  }
  return ok("huge pages", text);
}

Finding check_shm(const std::string& root) {
  struct statvfs info {};
  const std::string folder = root + "/dev/shm";
  if (statvfs(folder.c_str(), &info) != 0) {
    return ok("shm", "there is no /dev/shm; Lockstep does not need it (other programs may)");
  }
  const double bytes = double(info.f_blocks) * double(info.f_frsize);
  return ok("shm", fmt::format("/dev/shm has {:.2f} GiB; Lockstep does not need it, Python's loaders do", gib(bytes)));
}

}  // namespace

Findings check_memory(const std::string& root) {
  return {check_available(root), check_huge_pages(root), check_shm(root)};
}

namespace {

using Resource = decltype(RLIMIT_NOFILE);

std::string text_of(rlim_t value, rlim_t unit) {
  return value == RLIM_INFINITY ? "no limit" : fmt::format("{}", value / unit);
}

// A limit that should be at least `wanted`; below `needed` nothing works.
Finding check(const char* topic, Resource resource, rlim_t needed, rlim_t wanted, rlim_t unit, const char* what,
              const char* advice) {
  rlimit limit{};
  getrlimit(resource, &limit);
  const std::string text =
      fmt::format("{}: {} (at most {})", what, text_of(limit.rlim_cur, unit), text_of(limit.rlim_max, unit));
  if (limit.rlim_cur < needed) return problem(topic, text, advice);
  if (limit.rlim_cur < wanted) return warning(topic, text, advice);
  return ok(topic, text);
}

}  // namespace

Findings check_limits(const std::string& root) {
  Findings findings{
      check("files", RLIMIT_NOFILE, 256, 1024, 1, "open files",
            "a rank needs two for each other rank of the machine: ulimit -n 65536"),
      check("processes", RLIMIT_NPROC, 64, 512, 1, "processes and threads of this user", "ulimit -u 4096"),
      check("locked", RLIMIT_MEMLOCK, 0, 8 << 20, 1024, "locked memory in KiB",
            "RDMA between machines needs it: ulimit -l unlimited (/etc/security/limits.conf)"),
      check("file size", RLIMIT_FSIZE, 2 << 20, 1 << 30, 1024, "size of a file in KiB",
            "shared memory counts as files: ulimit -f unlimited"),
      check("addresses", RLIMIT_AS, rlim_t(1) << 30U, rlim_t(64) << 30U, 1 << 20, "address space in MiB",
            "ulimit -v unlimited"),
  };
  const std::string noexec = first_line(root + "/proc/sys/vm/memfd_noexec");
  if (noexec == "2") {
    findings.push_back(problem("memfd", "vm.memfd_noexec is 2: the launcher cannot start its supervisor",
                               "as root: sysctl vm.memfd_noexec=1"));
  }
  return findings;
}

}  // namespace lockstep::doctor
