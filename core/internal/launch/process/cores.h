// Which cores a process may use, and how workers share them.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

// The cores in this process's affinity mask, ascending: those that a batch system, taskset or a container allows. Empty
// if the system does not say.
std::vector<int> allowed_cores();

// The time that the process's control groups (of either version) allow, in cores: the least of its group and all above
// it. Empty: no limit.
std::optional<double> cgroup_cores(const std::string& memberships = "/proc/self/cgroup",
                                   const std::string& mount = "/sys/fs/cgroup");

// How many cores are worth using: the allowed cores, or as many as that limit pays for, rounded up, or as many as Slurm
// has given the job on this node (SLURM_CPUS_ON_NODE: not every site binds its tasks to them). At least 1.
int usable_cores();

// One contiguous share for each worker; their sizes differ by at most one. The lists are empty, which means "all
// cores", if there are more workers than cores or only one worker.
std::vector<std::vector<int>> share_cores(const std::vector<int>& cores, int workers);

}  // namespace lockstep::launch
