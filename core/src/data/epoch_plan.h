// What is to be made in one loop over a loader.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/data/batch_source.h"

namespace lockstep::data {

struct EpochPlan {
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

  std::int64_t epoch = 0;
  std::int64_t batches = 0;     // of an iterable dataset kUnknown
  std::int64_t batch_size = 1;  // without `ends`; the last batch may be smaller
  std::int64_t dataset_size = 0;
  std::vector<std::int64_t> indices = {};  // of this rank's samples, in order
  std::vector<std::int64_t> keys = {};     // the random key of each index; empty: the indices
  std::vector<std::size_t> ends = {};      // with a batch sampler: where each batch ends in `indices`
  // Only with an iterable dataset: one for each worker, which no other worker uses; without workers one. Stream
  // n % streams.size() gives batch n.
  std::vector<std::unique_ptr<BatchStream>> streams = {};

  std::span<const std::int64_t> indices_of(std::int64_t batch) const { return part_of(indices, batch); }
  std::span<const std::int64_t> keys_of(std::int64_t batch) const {
    return part_of(keys.empty() ? indices : keys, batch);
  }

 private:
  std::span<const std::int64_t> part_of(const std::vector<std::int64_t>& values, std::int64_t batch) const {
    const auto number = static_cast<std::size_t>(batch);
    const auto size = static_cast<std::size_t>(batch_size);
    const std::size_t first = ends.empty() ? number * size : number == 0 ? 0 : ends[number - 1];
    const std::size_t end = ends.empty() ? std::min(first + size, values.size()) : ends[number];
    return std::span(values).subspan(first, end - first);
  }
};

}  // namespace lockstep::data
