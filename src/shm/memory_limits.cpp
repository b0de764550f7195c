#include "memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace lockstep::comm {
namespace {

// The number in a file; anything else ("max") means no limit.
std::size_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t number = kNoLimit;
  return file >> number ? number : kNoLimit;
}

// The smallest limit of a group and all its parents. A container may see its own group as the root, under another name.
std::size_t smallest_above(const std::string& mount, std::string group, const std::string& file) {
  std::size_t limit = number_in(mount + "/" + file);
  while (group.size() > 1) {
    limit = std::min(limit, number_in(mount + group + "/" + file));
    group.erase(group.rfind('/'));
  }
  return limit;
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
  std::ifstream file(memberships);
  // "hierarchy:controllers:/group"; in version 2 the controllers are empty.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") limit = std::min(limit, smallest_above(mount, group, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos)
      limit = std::min(limit, smallest_above(mount + "/memory", group, "memory.limit_in_bytes"));
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
