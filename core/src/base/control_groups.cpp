#include "base/control_groups.h"

#include <fstream>

namespace lockstep {

std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& memberships,
                                         const std::string& mount) {
  std::vector<ControlGroup> groups;
  std::ifstream file(memberships);
  // "hierarchy:controllers:/group"; in version 2 the controllers are empty.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_1 = ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
    if (!controllers.empty() && !version_1) continue;
    std::string root = mount;
    if (version_1) root.append("/").append(controllers);
    std::string group = line.substr(second + 1);
    while (group.size() > 1) {
      groups.push_back({root + group, version_1});
      const std::size_t slash = group.rfind('/');
      group.resize(slash == std::string::npos ? 0 : slash);
    }
    groups.push_back({root, version_1});
  }
  return groups;
}

}  // namespace lockstep
