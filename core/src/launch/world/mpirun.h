// What mpirun lets its ranks know of itself: where it runs, and what its job is called.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/environment.h"

namespace lockstep::launch {

// "HOST:PORT" at which Hydra's mpirun serves its proxies. It is in no variable: with_hydra() finds it.
inline constexpr const char* kHydraControl = "HYDRA_CONTROL_PORT";

// The machine where mpirun runs, as the other machines reach it; empty: the variables do not say it. Open MPI 4 hands
// on the addresses of its mpirun, of which this is the first; Open MPI 5 names its jobs after that machine; of Hydra it
// is the host of kHydraControl.
std::string host_of_mpirun(const Environment& environment);

// The job's name, the same for all ranks and different from that of other jobs; empty: there is none.
std::string job_of_mpirun(const Environment& environment);

// The environment with kHydraControl, if a process above this one is Hydra's proxy. Reads /proc.
Environment with_hydra(Environment environment);

// "HOST:PORT" of a proxy's command line, its words ended by zeros; nullopt: it has none.
std::optional<std::string> control_of_proxy(std::string_view command_line);

}  // namespace lockstep::launch
