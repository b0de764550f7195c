// Which GPUs a job gets, on a machine that it shares with other jobs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"
#include "lockstep/launch/spawn.h"
#include "site/leases.h"
#include "site/nvml.h"

namespace lockstep::site {

// `--devices`: "0,2" (numbers as below), "auto:2" (the two with the most free memory), "all".
struct DeviceRequest {
  enum class Kind { kList, kAuto, kAll };
  Kind kind = Kind::kList;
  std::vector<int> numbers;  // kList
  int count = 0;             // kAuto
};
Result<DeviceRequest> parse_devices(std::string_view text);

// The GPUs that this process may use, in the order of CUDA_VISIBLE_DEVICES if that is set (numbers of the PCI order or
// UUIDs, as a batch system gives them): the number of a GPU is its place in this list. As for CUDA, the list ends at
// the first entry that names no GPU.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::optional<std::string>& visible_devices);

// CUDA_VISIBLE_DEVICES of this process. Unlike other variables, it means "none" when it is set to nothing.
std::optional<std::string> visible_devices_variable();

// How many GPUs a worker can use: those of visible_gpus(). 0 where there is no driver. One where the variable names
// parts of GPUs (MIG): CUDA shows a process one part at most. Blocks as list_gpus() does.
int count_visible_gpus();

// GPUs with the leases on them.
struct TakenDevices {
  std::vector<Gpu> gpus;
  std::vector<Lease> leases;
};

// Takes leases on what is asked for. GPUs that another job holds, or that do not work, are passed over by `auto` and
// are errors for a list and for `all`. kUnavailable names what is missing and who holds it; kInvalidArgument a number
// that is not there. Blocks while other jobs choose, at most 10 s.
Result<TakenDevices> take_devices(const DeviceRequest& request, const std::vector<Gpu>& visible,
                                  const LeaseFolder& leases);

// Equal shares of the GPUs for the workers, in order. kInvalidArgument: more workers than GPUs, or a rest.
Result<std::vector<std::vector<Gpu>>> share_gpus(const std::vector<Gpu>& gpus, int workers);

// What makes exactly these GPUs cuda:0, cuda:1, ... of a program.
launch::Variables cuda_variables(const std::vector<Gpu>& gpus);

}  // namespace lockstep::site
