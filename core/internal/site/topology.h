// Cores and memory of this machine as hwloc sees them, and which of them each worker gets.
#pragma once

#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::site {

// One physical core: the processors (hyperthreads) of it that this process may use.
struct Core {
  int numa_node = 0;
  std::vector<int> processors;  // the numbers that the system gives them
};

struct Topology {
  // Only cores that this process may use. Neighbours in the list are near one another: they share caches, then the
  // memory of a NUMA node.
  std::vector<Core> cores;
};

// Whether the machine is more than equal cores around one memory. Costs a few system calls. Only on such a machine is
// hwloc worth the 10 ms that it takes to load.
bool has_structure();

// Loads hwloc (libhwloc.so.15) for this call. kUnavailable: it is not installed or cannot read this machine.
Result<Topology> read_topology();

// The processors of each worker: equal shares of whole cores, without a core in two shares. `near`: by worker, the NUMA
// node of its GPU, or -1. A worker gets cores of that node as long as there are any; workers without a GPU are spread
// over the nodes that have the most cores left for each. Empty lists, meaning all cores: one worker without a GPU, or
// more workers than cores. Pure.
std::vector<std::vector<int>> place_workers(const Topology& topology, const std::vector<int>& near);

}  // namespace lockstep::site
