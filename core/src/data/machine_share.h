// Splits the resources of a machine over its processes. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/data/share.h"

namespace lockstep::data {

// Size of part `index` when `total` is split into `parts`: sizes differ by at most one, the first parts are larger.
std::int64_t part_of(std::int64_t total, std::int64_t parts, std::int64_t index);

// The batch size of each rank when every machine has batches of `machine_batch` samples. Throws DataError
// (kInvalidArgument) when a process would get no sample, or when machines have different numbers of processes: a
// process cannot know the batch sizes of other machines then.
std::vector<std::int64_t> batches_of_ranks(const Share& share, std::int64_t machine_batch);

// Workers of this process: its share of the machine's, at least one.
int workers_of_process(const Share& share, int machine_workers);

// Cores for this process: those that it may run on. If it may run on all `online` cores of the machine, no launcher has
// split them, and this process takes its share of them. `limit`: the processor time, in cores, that a control group
// gives the processes of this machine together; this process counts no more than its share of it, rounded up.
int cores_of_process(const Share& share, int allowed, int online, std::optional<double> limit = {});

}  // namespace lockstep::data
