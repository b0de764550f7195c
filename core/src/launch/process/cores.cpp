#include "launch/process/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/host.h"
#include "lockstep/base/environment.h"

namespace lockstep::launch {
namespace {

// "max 100000" or "150000 100000": the time in a period, and the period.
std::optional<double> quota_2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0;
  double period = 0;
  return file >> quota >> period && quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

// The quota is -1 where there is none.
std::optional<double> quota_1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? std::optional(quota / period)
                                                                                 : std::nullopt;
}

}  // namespace

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
  return cores;
}

std::optional<double> cgroup_cores(const std::string& memberships, const std::string& mount) {
  std::optional<double> least;
  for (const ControlGroup& group : control_groups("cpu", memberships, mount)) {
    const auto cores = group.version_1 ? quota_1(group.folder) : quota_2(group.folder);
    if (cores) least = std::min(least.value_or(*cores), *cores);
  }
  return least;
}

int usable_cores() {
  const int allowed = std::max(1, static_cast<int>(allowed_cores().size()));
  const double limit = cgroup_cores().value_or(allowed);
  const int paid = std::clamp(static_cast<int>(std::ceil(limit)), 1, allowed);
  const auto given = Environment::of_process().get("SLURM_CPUS_ON_NODE");
  const int by_slurm = given ? std::atoi(given->c_str()) : 0;
  return by_slurm > 0 ? std::min(paid, by_slurm) : paid;
}

std::vector<std::vector<int>> share_cores(const std::vector<int>& cores, int workers) {
  std::vector<std::vector<int>> shares(static_cast<std::size_t>(workers));
  const std::size_t count = shares.size();
  if (count < 2 || count > cores.size()) return shares;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = cores.begin() + static_cast<std::ptrdiff_t>(i * cores.size() / count);
    const auto end = cores.begin() + static_cast<std::ptrdiff_t>((i + 1) * cores.size() / count);
    shares[i].assign(begin, end);
  }
  return shares;
}

}  // namespace lockstep::launch
