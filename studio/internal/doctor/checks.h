// The checks of `lockstep doctor` that only look. Each reads files of the system below `root` ("" on a real machine, a
// scratch folder in tests) and returns at once.
#pragma once

#include <string>

#include "doctor/finding.h"
#include "lockstep/base/status.h"

namespace lockstep::doctor {

// Cores, caches, load, clock governor, control groups.
Findings check_processor(const std::string& root);
// Memory, limits of the control group, huge pages, /dev/shm.
Findings check_memory(const std::string& root);
// ulimit: files, processes, locked memory, sizes; kernel settings that the launcher needs.
Findings check_limits(const std::string& root);
// The NVIDIA driver, its GPUs, who uses them.
Findings check_gpus(const std::string& root);
// LibTorch in `folder` (that of the build), of release `version`; both empty: this build has none.
Findings check_libtorch(const std::string& folder, const std::string& version);
// Interfaces, the way to other machines, ports.
Findings check_network(const std::string& root);
// Whether processes of this machine reach one another at 127.0.0.1, as those of every job must.
Status check_loopback();

}  // namespace lockstep::doctor
