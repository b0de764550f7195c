// The options of a loader as they apply to this process.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/data/data_loader.h"

namespace lockstep::data {

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

}  // namespace lockstep::data
