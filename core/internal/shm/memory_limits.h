// How much memory this process may use, by the limits of the machine, the container and the user.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

namespace lockstep::comm {

inline constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// The smallest limit of the control groups that a process is in (version 1 or 2). `memberships` is its
// /proc/PID/cgroup, `mount` where control groups are mounted.
std::size_t cgroup_memory_limit(const std::string& memberships = "/proc/self/cgroup",
                                const std::string& mount = "/sys/fs/cgroup");

// Physical memory, or less if the control groups say so.
std::size_t usable_memory();

// The rest of an address space limit (ulimit -v).
std::size_t address_space_left();

// The largest file that this process may make (ulimit -f). SIGXFSZ kills a process that exceeds it.
std::size_t largest_file();

}  // namespace lockstep::comm
