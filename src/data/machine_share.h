// How what a machine has is split over its processes. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/share.h"

namespace lockstep::data {

// Part `index` of `total` in `parts`: sizes differ by at most one, the first ones are larger.
std::int64_t part_of(std::int64_t total, std::int64_t parts, std::int64_t index);

// The batch size of each rank when every machine has batches of `machine_batch` samples. Throws DataError
// (kInvalidArgument) when a process would get none, or when machines have different numbers of processes, since then
// nobody knows the others' sizes.
std::vector<std::int64_t> batches_of_ranks(const Share& share, std::int64_t machine_batch);

// Workers of this process: its part of the machine's, at least one.
int workers_of_process(const Share& share, int machine_workers);

// Cores that this process may count on: those that it may run on; when these are all `online` ones of the machine, so
// that nobody has shared them out, its part of them.
int cores_of_process(const Share& share, int allowed, int online);

}  // namespace lockstep::data
