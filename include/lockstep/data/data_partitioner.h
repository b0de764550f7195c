// DataPartitioner: a seeded split of a dataset's indices by fractions, as in the tutorial "Writing Distributed
// Applications with PyTorch". For teaching and tests; DistributedSampler is for training.
//
//   DataPartitioner partitioner(dataset.size(), std::vector<double>(world_size, 1.0 / world_size));
//   std::span<const std::int64_t> mine = partitioner.use(rank);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

class DataPartitioner {
 public:
  // Shuffles 0..size-1 as Python's random.Random(seed).shuffle does: the same order as the tutorial's own. Partition i
  // gets the next floor(fractions[i] * size) of them; what is left over belongs to none. Throws DataError
  // (kInvalidArgument) for a negative size or fraction, and when the fractions add up to more than 1. At most 2^32
  // indices.
  DataPartitioner(std::int64_t size, const std::vector<double>& fractions, std::uint32_t seed = 1234);

  int partitions() const { return static_cast<int>(begins_.size()) - 1; }
  // Indices of one partition; valid as long as the partitioner. Throws DataError when there is no such partition.
  std::span<const std::int64_t> use(int partition) const;

 private:
  std::vector<std::int64_t> indices_;
  std::vector<std::size_t> begins_;  // of each partition, and the end of the last
};

}  // namespace lockstep::data
