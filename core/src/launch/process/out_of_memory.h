// Whether the kernel has ended a process for lack of memory. A worker that ends by SIGKILL cannot say so itself.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::launch {

struct MemoryKills {
  std::string place;  // "control group /sys/fs/cgroup/job", or "machine"; empty: not known
  std::uint64_t count = 0;
};

// How many processes the kernel has ended for lack of memory: in the control group of this process, or on the machine
// if the group does not say. The files are as for control_groups(), and /proc/vmstat.
MemoryKills memory_kills(const std::string& memberships = "/proc/self/cgroup",
                         const std::string& mount = "/sys/fs/cgroup", const std::string& vmstat = "/proc/vmstat");

// For a worker that SIGKILL has ended; empty: there were no more of them than `before`.
std::string lack_of_memory(const MemoryKills& before, const MemoryKills& now);

}  // namespace lockstep::launch
