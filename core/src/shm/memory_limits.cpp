#include "shm/memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/host.h"

namespace lockstep::comm {
namespace {

// The number in a file; anything else ("max") means no limit.
std::size_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t number = kNoLimit;
  return file >> number ? number : kNoLimit;
}

std::size_t soft_limit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  return limit.rlim_cur;
}

std::size_t page_size() {
  return static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace

std::size_t cgroup_memory_limit(const std::string& memberships, const std::string& mount) {
  std::size_t limit = kNoLimit;
  for (const ControlGroup& group : control_groups("memory", memberships, mount)) {
    const char* const file = group.version_1 ? "/memory.limit_in_bytes" : "/memory.max";
    limit = std::min(limit, number_in(group.folder + file));
  }
  return limit;
}

std::size_t usable_memory() {
  const std::size_t physical = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page_size();
  return std::min(physical, cgroup_memory_limit());
}

std::size_t address_space_left() {
  const std::size_t limit = soft_limit(RLIMIT_AS);
  if (limit == kNoLimit) return kNoLimit;
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  return limit - std::min(limit, pages * page_size());
}

std::size_t largest_file() {
  return soft_limit(RLIMIT_FSIZE);
}

}  // namespace lockstep::comm
