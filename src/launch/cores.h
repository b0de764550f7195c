// Which cores a process may use, and how workers share them.
#pragma once

#include <vector>

namespace lockstep::launch {

// The cores in this process's affinity mask, ascending: what a batch system, taskset or a container allows. Empty when
// the system does not tell.
std::vector<int> allowed_cores();

// One contiguous share for each worker, sizes differing by at most one. Empty lists, which mean "all cores", when there
// are more workers than cores or only one worker.
std::vector<std::vector<int>> share_cores(const std::vector<int>& cores, int workers);

// NVIDIA GPUs that a worker could use: those in CUDA_VISIBLE_DEVICES where that is set, else those of the machine.
int visible_gpus();

}  // namespace lockstep::launch
