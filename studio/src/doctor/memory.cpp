#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cstdint>
#include <map>
#include <sstream>
#include <string>

#include "doctor/checks.h"
#include "doctor/text_files.h"
#include "shm/memory_limits.h"

namespace lockstep::doctor {
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

}  // namespace lockstep::doctor
