#include "machine_share.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/data/errors.h"

namespace lockstep::data {

std::int64_t part_of(std::int64_t total, std::int64_t parts, std::int64_t index) {
  return total / parts + (index < total % parts ? 1 : 0);
}

std::vector<std::int64_t> batches_of_ranks(const Share& share, std::int64_t machine_batch) {
  const std::int64_t local = share.local_world_size;
  if (machine_batch < local) {
    throw DataError(
        ErrorCode::kInvalidArgument,
        fmt::format("machine_batch_size {} is too small for the {} processes of this machine: each needs at "
                    "least one sample",
                    machine_batch, local));
  }
  const bool alike = share.nodes * local == share.world_size && share.rank % local == share.local_rank;
  if (!alike) {
    throw DataError(
        ErrorCode::kInvalidArgument,
        fmt::format("machine_batch_size needs the same number of processes on each machine, numbered machine by "
                    "machine; found {} processes on {} machines, {} of them on this one (rank {}, local "
                    "rank {}). Set batch_size on each rank instead",
                    share.world_size, share.nodes, local, share.rank, share.local_rank));
  }
  std::vector<std::int64_t> batches(static_cast<std::size_t>(share.world_size));
  for (std::size_t rank = 0; rank < batches.size(); ++rank) {
    batches[rank] = part_of(machine_batch, local, static_cast<std::int64_t>(rank) % local);
  }
  return batches;
}

int workers_of_process(const Share& share, int machine_workers) {
  return std::max(1, static_cast<int>(part_of(machine_workers, share.local_world_size, share.local_rank)));
}

int cores_of_process(const Share& share, int allowed, int online, std::optional<double> limit) {
  const bool split = share.local_world_size <= 1 || allowed < online;
  const auto cores = split ? allowed : static_cast<int>(part_of(allowed, share.local_world_size, share.local_rank));
  const double paid = limit.value_or(online) / static_cast<double>(std::max<std::int64_t>(share.local_world_size, 1));
  return std::max(1, limit ? std::min(cores, static_cast<int>(std::ceil(paid))) : cores);
}

}  // namespace lockstep::data
