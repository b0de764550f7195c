#include "site/topology.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace lockstep::site {
namespace {

// The functions of hwloc that are used. The macros of its header would need it at link time.
struct Hwloc {
#define LOCKSTEP_HWLOC_FUNCTIONS(X) \
  X(hwloc_topology_init)            \
  X(hwloc_topology_load)            \
  X(hwloc_topology_destroy)         \
  X(hwloc_get_type_depth)           \
  X(hwloc_get_nbobjs_by_depth)      \
  X(hwloc_get_obj_by_depth)         \
  X(hwloc_bitmap_first)             \
  X(hwloc_bitmap_next)
#define LOCKSTEP_HWLOC_MEMBER(name) decltype(&::name) name = nullptr;
  LOCKSTEP_HWLOC_FUNCTIONS(LOCKSTEP_HWLOC_MEMBER)
#undef LOCKSTEP_HWLOC_MEMBER

  static Result<Hwloc> load() {
    void* library = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return Status(ErrorCode::kUnavailable, fmt::format("hwloc cannot be loaded: {}", dlerror()));
    }
    Hwloc functions;
    bool all = true;
#define LOCKSTEP_HWLOC_FIND(name)                                              \
  functions.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  all = all && functions.name != nullptr;
    LOCKSTEP_HWLOC_FUNCTIONS(LOCKSTEP_HWLOC_FIND)
#undef LOCKSTEP_HWLOC_FIND
    if (!all) return Status(ErrorCode::kUnavailable, "hwloc cannot be used: libhwloc.so.15 lacks a function");
    return functions;
  }
};

std::vector<int> numbers_in(const Hwloc& hwloc, hwloc_const_bitmap_t set) {
  std::vector<int> numbers;
  if (set == nullptr) return numbers;
  for (int i = hwloc.hwloc_bitmap_first(set); i >= 0; i = hwloc.hwloc_bitmap_next(set, i)) numbers.push_back(i);
  return numbers;
}

// hwloc knows what the machine allows (its control group); the mask also what taskset or a batch system said.
std::vector<int> allowed(const std::vector<int>& processors) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return processors;
  std::vector<int> result;
  for (const int processor : processors) {
    if (processor < CPU_SETSIZE && CPU_ISSET(processor, &mask)) result.push_back(processor);
  }
  return result;
}

// Takes `count` cores, those of node `wanted` first, else those of the node that has the most left.
std::vector<std::size_t> take(const Topology& topology, std::vector<bool>& used, int wanted, std::size_t count) {
  std::vector<std::size_t> taken;
  while (taken.size() < count) {
    std::map<int, std::size_t> left;
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) ++left[topology.cores[i].numa_node];
    }
    if (left.empty()) break;
    int node = wanted;
    if (!left.contains(node)) {
      node = std::max_element(left.begin(), left.end(), [](const auto& a, const auto& b) {
               return a.second < b.second;
             })->first;
    }
    for (std::size_t i = 0; i < used.size() && taken.size() < count; ++i) {
      if (used[i] || topology.cores[i].numa_node != node) continue;
      used[i] = true;
      taken.push_back(i);
    }
  }
  return taken;
}

}  // namespace

bool has_structure() {
  std::ifstream smt("/sys/devices/system/cpu/smt/active");
  int active = 0;
  if (smt >> active && active != 0) return true;
  std::error_code error;
  return std::filesystem::exists("/sys/devices/system/node/node1", error);
}

Result<Topology> read_topology() {
  LOCKSTEP_ASSIGN_OR_RETURN(const Hwloc hwloc, Hwloc::load());
  hwloc_topology_t machine = nullptr;
  if (hwloc.hwloc_topology_init(&machine) != 0) return Status(ErrorCode::kUnavailable, "hwloc cannot be used here");
  Topology topology;
  if (hwloc.hwloc_topology_load(machine) == 0) {
    int depth = hwloc.hwloc_get_type_depth(machine, HWLOC_OBJ_CORE);
    if (depth < 0) depth = hwloc.hwloc_get_type_depth(machine, HWLOC_OBJ_PU);
    const unsigned count = depth < 0 ? 0 : hwloc.hwloc_get_nbobjs_by_depth(machine, depth);
    for (unsigned i = 0; i < count; ++i) {
      const hwloc_obj_t object = hwloc.hwloc_get_obj_by_depth(machine, depth, i);
      Core core;
      core.processors = allowed(numbers_in(hwloc, object->cpuset));
      core.numa_node = std::max(0, hwloc.hwloc_bitmap_first(object->nodeset));
      if (!core.processors.empty()) topology.cores.push_back(std::move(core));
    }
  }
  hwloc.hwloc_topology_destroy(machine);
  if (topology.cores.empty()) return Status(ErrorCode::kUnavailable, "hwloc finds no core of this machine");
  return topology;
}

std::vector<std::vector<int>> place_workers(const Topology& topology, const std::vector<int>& near) {
  std::vector<std::vector<int>> shares(near.size());
  const bool any_gpu = std::any_of(near.begin(), near.end(), [](int node) { return node >= 0; });
  if (near.size() > topology.cores.size() || (near.size() < 2 && !any_gpu)) return shares;
  std::vector<bool> used(topology.cores.size(), false);
  // Workers with a GPU choose first, because they should be near it.
  std::vector<std::size_t> order;
  order.reserve(near.size());
  for (std::size_t i = 0; i < near.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return near[a] >= 0 && near[b] < 0; });
  for (const std::size_t worker : order) {
    const std::size_t begin = worker * used.size() / near.size();
    const std::size_t end = (worker + 1) * used.size() / near.size();
    for (const std::size_t core : take(topology, used, near[worker], end - begin)) {
      const std::vector<int>& processors = topology.cores[core].processors;
      shares[worker].insert(shares[worker].end(), processors.begin(), processors.end());
    }
    std::sort(shares[worker].begin(), shares[worker].end());
  }
  return shares;
}

}  // namespace lockstep::site
