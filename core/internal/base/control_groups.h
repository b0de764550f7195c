// The control groups (cgroups, of version 1 or 2) that limit a process.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct ControlGroup {
  std::string folder;
  bool version_1 = false;  // its files have other names
};

// The groups in which `controller` ("cpu", "memory") limits a process: its own and all above them, up to the roots.
// Limits of all of them hold. Some may be missing: a container may see its own group as the root, under another name.
//
// `memberships` is the process's /proc/PID/cgroup, `mount` where control groups are mounted.
std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& memberships,
                                         const std::string& mount);

}  // namespace lockstep
