// What a loader finds in its process: the options as they apply there, the share of the machine, and the orders that
// earlier loaders have given.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/share.h"

namespace lockstep::data {

// The options of a loader as they apply to this process.
struct DataLoaderBase::Settings {
  // Throws DataError.
  Settings(const BatchSource& source, DataLoaderOptions given);

  DataLoaderOptions options;
  std::unique_ptr<DistributedSampler> sampler;
  int cores = 1;

 private:
  void take_machine_shares(const Share& share, DistributedSamplerOptions& sampling);
};

// The sampler's batches of an epoch. Throws DataError (kInvalidArgument) when they are not as BatchSampler says.
std::vector<std::vector<std::int64_t>> checked_batches(const BatchSampler& sampler, std::uint64_t seed,
                                                       std::int64_t epoch);

// The random orders of epoch 0 that loaders have given to the end before they were destroyed. A program that makes a
// loader anew for each epoch trains on the same order each time, and sees no error.
class GivenOrders {
 public:
  // Never destroyed: a static loader may outlive it otherwise.
  static GivenOrders& of_process();
  // Notes an order that was given to its end.
  void add(const std::string& order);
  // Logs a warning, once for each order.
  void warn_if_given(const std::string& order);

 private:
  const Origin origin_{};
  Mutex mutex_;
  std::map<std::string, bool> warned_ LOCKSTEP_GUARDED_BY(mutex_);
};

// --- How the resources of a machine are split over its processes. Pure functions.

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
