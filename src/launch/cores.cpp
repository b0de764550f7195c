#include "launch/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>

namespace lockstep::launch {

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

int visible_gpus() {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::string_view list(visible);
    if (list.empty() || list.starts_with("-")) return 0;
    return static_cast<int>(std::count(list.begin(), list.end(), ',')) + 1;
  }
  std::error_code error;
  const std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", error);
  if (error) return 0;
  return static_cast<int>(std::distance(begin(gpus), end(gpus)));
}

}  // namespace lockstep::launch
