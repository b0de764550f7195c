// Which cores a process may use, and how workers share them.
#pragma once

#include <vector>

namespace lockstep::launch {

// The cores in this process's affinity mask, ascending: those that a batch system, taskset or a container allows. Empty
// if the system does not say.
std::vector<int> allowed_cores();

// One contiguous share for each worker; their sizes differ by at most one. The lists are empty, which means "all
// cores", if there are more workers than cores or only one worker.
std::vector<std::vector<int>> share_cores(const std::vector<int>& cores, int workers);

// The number of NVIDIA GPUs that a worker can use: those in CUDA_VISIBLE_DEVICES if it is set, else all of the machine.
int visible_gpus();

}  // namespace lockstep::launch
