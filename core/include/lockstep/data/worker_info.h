// Which worker of a loader the present thread is, as torch.utils.data.get_worker_info.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep::data {

struct WorkerInfo {
  int id = 0;              // 0 to num_workers - 1
  int num_workers = 0;     // of the loader; with kAutoWorkers the most that there may be
  std::uint64_t seed = 0;  // the loader's seed + id
};

// nullopt in threads that are no workers, such as the consumer of a loader with num_workers = 0.
std::optional<WorkerInfo> get_worker_info();

// Notes which sample the present thread makes, for the error of a loader's timeout. `key`: the sample's number in the
// dataset that the loader has. Datasets that override get_batch may call it; it costs next to nothing.
void note_sample(std::int64_t key);

}  // namespace lockstep::data
